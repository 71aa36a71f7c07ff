"""STDiT3: Open-Sora 1.2's diffusion transformer over video latents.

Spatial and temporal blocks take turns; text enters by cross-attention, timestep and frame rate by
modulation. State dicts equal upstream's in names and shapes (973 keys at XL/2). Upstream's quirks
that its weights depend on are kept and marked "quirk".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.errors import ConfigError
from trainer.models import layers, positions
from trainer.models.activation_checkpointing import GradCheckpoint, block_bytes
from trainer.models.attention import flash3
from trainer.models.attention.calls import Packed, pack, packs_text
from trainer.models.attention.table import Table
from trainer.models.block import fp8
from trainer.models.block.rows import fits
from trainer.models.block.stdit_block import STDiT3Block
from trainer.models.compiling import around_recomputed, compile_each, keep_kernels_private, on_views
from trainer.models.fused import norm_modulate, wide
from trainer.models.inputs import check_inputs, frame_mask, real_columns, repeated, unpacked
from trainer.models.kernels import kernels_used
from trainer.models.offloading import to_host
from trainer.models.stdit_config import STDiT3Config, config_of

Size = tuple[int, int, int]  # frames, rows, columns
# B batch · C channels · T,H,W latent frames, height, width (after patchify: T frames of tokens)
# S tokens of a frame · L text tokens · D width · F 1 or T: one modulation per clip or per frame
# N blocks, in the order they run


def build_stdit(kind: str = "STDiT3", **options: Any) -> STDiT3:
    """The model of a config's `model.type` with STDiT3Config's fields. Raises ConfigError."""
    return STDiT3(config_of(kind, options))


class FinalLayer(nn.Module):
    """Modulated norm and the projection of a token to the values of its patch."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.randn(2, width) / width**0.5)
        self.linear = nn.Linear(width, values)

    def forward(
        self, x_BTSD: Tensor, t_BD: Tensor, t0_BD: Tensor | None, x_mask_BT: Tensor | None
    ) -> Tensor:
        x_BTSD = self._modulated(x_BTSD, t_BD)
        if x_mask_BT is not None and t0_BD is not None:
            # quirk: condition frames are normed and modulated a second time, with timestep 0
            again = self._modulated(x_BTSD, t0_BD)
            x_BTSD = torch.where(x_mask_BT[:, :, None, None], x_BTSD, again)
        return self.linear(x_BTSD)

    def _modulated(self, x_BTSD: Tensor, t_BD: Tensor) -> Tensor:
        shift, scale = (self.scale_shift_table + t_BD[:, None])[:, :, None, None].unbind(1)
        return norm_modulate(x_BTSD, shift, scale)


class STDiT3(nn.Module):
    def __init__(self, config: STDiT3Config) -> None:
        super().__init__()
        self.config = config
        width, patch = config.hidden_size, config.patch_size
        self.grad_checkpoint, self.offload = GradCheckpoint(), False
        self.positions, self.fused = positions.EXACT, True
        self.in_fp8 = False
        self._head_width = width // config.num_heads
        self.rope = positions.RotaryFrequencies(self._head_width)
        self.x_embedder = layers.PatchEmbed(patch, config.in_channels, width)
        self.t_embedder = layers.ScalarEmbedder(width)
        self.fps_embedder = layers.ScalarEmbedder(width)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        sizes = (config.class_dropout_prob, config.model_max_length)
        self.y_embedder = layers.CaptionEmbedder(config.caption_channels, width, *sizes)
        self.spatial_blocks = nn.ModuleList(STDiT3Block(config, False) for _ in range(config.depth))
        self.temporal_blocks = nn.ModuleList(STDiT3Block(config, True) for _ in range(config.depth))
        self.final_layer = FinalLayer(width, patch[0] * patch[1] * patch[2] * config.out_channels)
        self.use_attention(Table())  # one object: compiled blocks are guarded by what they share
        self._initialize()
        if config.only_train_temporal:
            self.requires_grad_(False)
            self.temporal_blocks.requires_grad_(True)
        if config.freeze_y_embedder:
            self.y_embedder.requires_grad_(False)

    # Switches of a run. None of them is part of the weights or their config.

    def enable_grad_checkpoint(
        self, what: GradCheckpoint | bool | int | str = True, offload: bool = False
    ) -> None:
        """`what` as in GradCheckpoint; `offload` keeps the rest on the host. Raises ConfigError."""
        self.grad_checkpoint, self.offload = GradCheckpoint.parse(what), offload

    def recomputed_blocks(self, batch: int, latent: Size, text_tokens: int) -> frozenset[int]:
        """Blocks that run a second time for latents of that size: even spatial, odd temporal."""
        frames, rows, columns = self._grid(latent)
        config, weight = self.config, self.x_embedder.proj.weight
        keys, item = (frames, rows * columns, text_tokens), weight.element_size()
        sizes = (self._head_width, *keys, self.fused * config.hidden_size)
        kernels = kernels_used(self.table, weight.device.type, item, *sizes)
        size = block_bytes(config, batch, *keys, item, kernels)
        return self.grad_checkpoint.blocks(config.depth, size, latent)

    def use_positions(self, mode: str) -> None:
        """One of `positions.POSITIONS`. Raises ConfigError."""
        if mode not in positions.POSITIONS:
            known = ", ".join(positions.POSITIONS)
            raise ConfigError(f"positions must be one of {known}; not {mode!r}")
        self.positions = mode

    def use_attention(self, table: Table) -> None:
        """Choose kernels by `table` where the model runs on an accelerator. Raises ConfigError."""
        if table.flash == "FA3":
            flash3.activate()
        self.table = table
        for block in self.blocks():
            block.attn.table = block.cross_attn.table = table

    def use_fused(self, fused: bool) -> None:
        """Whether our kernels are between a block's products, where they run (`models.block`)."""
        self.fused = fused
        for block in self.blocks():
            block.fused = fused

    def use_fp8(self, in_fp8: bool) -> None:
        """Whether the blocks' large products are of fp8 matrices (`models.block.fp8`)."""
        self.in_fp8 = in_fp8
        for block in self.blocks():
            block.in_fp8 = in_fp8

    def compile_blocks(self, backend: Any = "inductor") -> None:
        """See `compile_each`. The 248 shapes of stage 1 need 12 programs."""
        self.use_fused(False)
        compile_each(self.blocks(), backend)

    def run_blocks_by(
        self,
        device: str,
        itemsize: int,
        *,
        fused: bool = True,
        compiled: bool = False,
        in_fp8: bool = False,
        backend: Any = "inductor",
    ) -> None:
        """Our kernels where they take values of `itemsize` bytes, else torch.compile, if wanted;
        with `in_fp8` on a CPU by our kernels' formulas. Raises ConfigError, EngineError."""
        width = self.config.hidden_size
        self.use_fused(fused and fits(device, itemsize, width, self._head_width))
        if in_fp8:
            fp8.require_widths(self.config)
            fp8.require(device, itemsize, ours=self.fused)
        self.use_fp8(in_fp8)
        if self.fused:
            keep_kernels_private()
        elif compiled and not in_fp8:
            self.compile_blocks(backend)

    def blocks(self) -> list[STDiT3Block]:
        """In the order they run."""
        pairs = zip(self.spatial_blocks, self.temporal_blocks, strict=True)
        return [block for pair in pairs for block in pair]  # type: ignore[misc]

    def draw_kept(self, clips: int, generator: torch.Generator | None = None) -> Tensor | None:
        """Stochastic depth: what multiplies the two gates of every block, [clips, N, 2] on the CPU.
        0 leaves a branch out for a clip; None, where none ever is. Drawn for a whole microbatch,
        however many of its clips pass at once."""
        most, depth = self.config.drop_path, self.config.depth
        if not most:
            return None
        keep_N = 1 - torch.linspace(0, most, depth, dtype=torch.float64, device="cpu")
        keep_N1 = keep_N.repeat_interleave(2)[:, None]  # a pair's blocks have one probability
        draws = torch.rand(clips, 2 * depth, 2, generator=generator, device="cpu")
        return (draws < keep_N1) / keep_N1

    def forward(
        self,
        x_BCTHW: Tensor,
        timestep_B: Tensor,
        y: Tensor,
        mask: Tensor | Sequence[int] | None = None,
        x_mask: Tensor | None = None,
        fps: Tensor | None = None,
        height: Tensor | None = None,
        width: Tensor | None = None,
        num_frames: Tensor | None = None,
        ar: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """[B, out_channels, T, H, W]: the velocity, then (pred_sigma) as many unused channels.

        In fp32, or fp64 of an fp64 model.

        x: latents, any T, H, W (padded to the patch inside); timestep: 0 (clean) to 1000 (noise);
        y: text features [B, 1, L, C]; mask: int [B or fewer, L], 1 = real token, fewer rows repeat;
        x_mask: bool [B, T], False = a clean condition frame, seen with timestep 0; fps, height and
        width (pixels): [B]. With skip_y_embedder y is [1, sum(lengths), D] and mask the lengths.
        num_frames and ar come along in upstream's batches and are not read. kept: of `draw_kept`,
        drawn here in training if not given.
        """
        sizes = {"fps": fps, "height": height, "width": width}
        check_inputs(self.config, x_BCTHW, timestep_B, y, mask, x_mask, sizes)
        assert fps is not None
        assert height is not None
        assert width is not None
        batch, _, frames, rows, columns = x_BCTHW.shape
        device, dtype = x_BCTHW.device, self.x_embedder.proj.weight.dtype
        pt, ph, pw = self.config.patch_size
        grid = self._grid((frames, rows, columns))

        x_BTSD = self.x_embedder(x_BCTHW.to(dtype))
        x_BTSD = x_BTSD + self._positions(grid, height, width, device).to(dtype)
        x_mask_BT = frame_mask(x_mask, grid[0], pt)
        fps_BD = self.fps_embedder(repeated(positions.as_seen(fps, self.positions), batch))
        t_BD = self.t_embedder(timestep_B) + fps_BD
        t_BF6D = self._modulation(t_BD)
        t0_BD = None
        if x_mask_BT is not None:
            x_mask_BT = x_mask_BT.to(device, non_blocking=True)
            t0_BD = self.t_embedder(torch.zeros_like(timestep_B)) + fps_BD
            # Chosen once per frame here, so a block modulates in a single pass.
            t_BF6D = torch.where(x_mask_BT[:, :, None, None], t_BF6D, self._modulation(t0_BD))
        text, real = self._text(y, mask, batch, x_BTSD)

        if self.training and kept is None:
            kept = self.draw_kept(batch)
        latent = (frames, rows, columns)
        x_BTSD = self._run_blocks(x_BTSD, text, real, t_BF6D, latent, kept)
        x_BTSD = self.final_layer(x_BTSD, t_BD, t0_BD, x_mask_BT)
        order = "b t (h w) (p q r c) -> b c (t p) (h q) (w r)"
        out = rearrange(x_BTSD, order, h=grid[1], p=pt, q=ph, r=pw)
        # A copy in fp32, too: FSDP2 hooks what a module returns, and an operation in place on a
        # view of it would drop the hook. It warns of that in every run.
        return out[:, :, :frames, :rows, :columns].to(wide(dtype), copy=True)

    def _run_blocks(
        self,
        x_BTSD: Tensor,
        y: Tensor,
        real: Tensor | Packed | None,
        t_BF6D: Tensor,
        latent: Size,
        kept_BN2: Tensor | None,
    ) -> Tensor:
        of_blocks: Sequence[Tensor | None] = [None] * (2 * self.config.depth)
        if kept_BN2 is not None:
            kept_NB6 = kept_BN2.new_ones(len(of_blocks), len(x_BTSD), 6)
            kept_NB6[:, :, 2::3] = kept_BN2.transpose(0, 1)  # the gates
            of_blocks = kept_NB6.to(x_BTSD.dtype).to(x_BTSD.device, non_blocking=True).unbind()
        rotation = self.rope(x_BTSD.shape[1], self.positions)
        recomputed: frozenset[int] = frozenset()
        if learns := torch.is_grad_enabled():
            length = real.keys if isinstance(real, Packed) else y.shape[1]
            recomputed = self.recomputed_blocks(len(x_BTSD), latent, length)
        host = to_host(x_BTSD.device, 2 * self.config.depth) if learns and self.offload else None
        with host or nullcontext():
            for index, (block, kept_B6) in enumerate(zip(self.blocks(), of_blocks, strict=True)):
                if host is not None:
                    host.begin(block.parameters)
                inputs = (x_BTSD, y, real, t_BF6D, rotation if block.temporal else None, kept_B6)
                if index in recomputed:
                    # No random number is drawn in a block: there is no state of it to keep.
                    more: dict[str, Any] = {"preserve_rng_state": False}
                    run: Callable[..., Tensor] = block
                    if block._compiled_call_impl is not None:
                        more["context_fn"], run = around_recomputed, on_views(block)
                    x_BTSD = checkpoint(run, *inputs, use_reentrant=False, **more)
                else:
                    x_BTSD = block(*inputs)
        return x_BTSD

    def _grid(self, latent: Size) -> Size:
        t, h, w = (-(-size // p) for size, p in zip(latent, self.config.patch_size, strict=True))
        return t, h, w

    def _positions(self, grid: Size, height: Tensor, width: Tensor, device: torch.device) -> Tensor:
        # quirk: the first clip's pixel size decides for the whole batch
        seen = [positions.as_seen(side[0], self.positions) for side in (height, width)]
        sides = [side.to(device).double() for side in seen]
        scale = (sides[0] * sides[1]).sqrt() / self.config.input_sq_size
        size = (self.config.hidden_size, *grid[1:])
        return positions.grid_embedding(*size, scale, device, self.positions)

    def _modulation(self, t_BD: Tensor) -> Tensor:
        return rearrange(self.t_block(t_BD), "b (six d) -> b 1 six d", six=6)

    def _text(
        self, y: Tensor, mask: Tensor | Sequence[int] | None, batch: int, x_BTSD: Tensor
    ) -> tuple[Tensor, Tensor | Packed | None]:
        """Text of the model's width, and which of its tokens are real (None: all)."""
        device, dtype = x_BTSD.device, x_BTSD.dtype
        packs = packs_text(device, dtype, self.table, y.shape[-2], self._head_width)
        if self.config.skip_y_embedder:
            assert mask is not None  # checked: as many lengths as clips
            y_BLD, keep_BL = unpacked(y.to(dtype), [int(length) for length in mask])
        else:
            columns = keep_BL = None
            if mask is not None:
                # quirk: a caption dropped for the null text keeps its own mask
                keep_BL = repeated(torch.as_tensor(mask) != 0, batch)
                packs = packs and keep_BL.device.type == "cpu"
                if not packs:
                    columns, keep_BL = real_columns(keep_BL)
            y_BLD = self.y_embedder(y.to(dtype), columns).squeeze(1)
        if packs and keep_BL is not None:
            return pack(y_BLD, keep_BL, x_BTSD.shape[1] * x_BTSD.shape[2])
        return y_BLD, None if keep_BL is None else keep_BL.to(device, non_blocking=True)

    def _initialize(self) -> None:
        """Upstream's start: Xavier, temporal blocks as identity, frame rate without effect."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.fps_embedder.get_parameter("mlp.0.weight"), std=0.02)
        nn.init.zeros_(self.fps_embedder.get_parameter("mlp.2.weight"))
        for block in self.temporal_blocks:
            for layer in ("attn.proj", "cross_attn.proj", "mlp.fc2"):
                nn.init.zeros_(block.get_parameter(f"{layer}.weight"))
