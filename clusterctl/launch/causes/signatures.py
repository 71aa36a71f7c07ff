"""Known sentences of a rank's end: wording, class, what it means, what to do. Data.

The texts are those of CPython 3.10 to 3.13, torch 2.6 to 2.13 with gloo and NCCL, safetensors, the
Linux kernel's errno, and the trainer's own `error:` lines (trainer/errors.py and its callers).
CUDA's own are in cuda_errors.py, which comes first. Each signature has a recorded log below
tests/captures/why, whose origin tests/captures/README.md tells. A class that is a consequence
(`Kind.is_consequence`) is that of a victim.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from clusterctl.launch.causes import cuda_errors
from clusterctl.launch.causes.kinds import Kind
from trainer.runlog.checkpoint_name import IN_TEXT


@dataclass(frozen=True, slots=True)
class Signature:
    """One wording with what is known about it."""

    name: str  # stable; also the name of its recorded log
    kind: Kind
    words: re.Pattern[str]
    short: str  # of many ranks that end so: "190 connection closed by peer"
    meaning: str
    advice: str
    is_of_node: bool = False


def _one(
    name: str, kind: Kind, words: str, short: str, meaning: str, advice: str, of: str = ""
) -> Signature:
    pattern = re.compile(words, re.IGNORECASE)
    return Signature(name, kind, pattern, short, meaning, advice, is_of_node=of == "node")


# Words of torch's watchdog and heartbeat monitor, from a time-out to the end of the process.
WATCHDOG = (
    r"watchdog caught collective operation timeout.*|watchdog thread terminated with exception.*|"
    r"taking the entire process down.*|watchdog got stuck.*|heartbeat monitor timed out.*|"
    r"received a dump signal due to a collective timeout.*|"
    r"observed flight recorder dump signal from another rank.*|"
    r"received a global timeout from another rank.*|"
    r"exception \(either an error or timeout\) detected by watchdog.*|"
    r"raised the following async exception.*|"
    r"after attempting to dump debug info, due to (?:a )?(?:collective|ProcessGroup|watchdog).*"
)
_NODE = "leave the node out (clusterctl exclude add NODE --reason …)"
_LOADER_DIED = (
    "a process of the data loader was ended, most often for want of memory",
    (
        "look for oom-kill in the kernel's log (clusterctl run 'dmesg -T | grep -i kill'); "
        "use fewer workers"
    ),
)
_LOOK = "look for the rank that ended first; this one only noticed"

# Errors of clients of services outside of the run: their connections are none between ranks.
_CLIENT = (
    r"^(?:requests|urllib3|huggingface_hub|wandb|httpx|httpcore|aiohttp|botocore|boto3|datasets|"
    r"google\.api_core)(?:\.\w{1,60}){0,4}\."
)
_OF_NETWORK = (
    r"\w{0,40}?(?:Timeout|Connect|SSL|Proxy|Chunked|ReadError|RemoteProtocol|Protocol|MaxRetry|"
    r"CommError|HTTPError|Endpoint|ServiceUnavailable|DeadlineExceeded|TooManyRequests|Retry|"
    r"IncompleteRead|Network|ServerDisconnected)\w{0,40}"
)
LONGEST = 4000  # characters of an error that are searched
GENERAL = "cuda-usage"  # of an error of CUDA that says little: what stands beside it counts first

# The first one that fits decides. A taken port and the watchdog are worded with the same classes as
# the loss of a peer (DistNetworkError), so they come before it. A watchdog that reports an error of
# its own GPU is no victim, so CUDA comes before it; what NCCL names as its last error comes before
# its mere result.
SIGNATURES: tuple[Signature, ...] = (
    _one("port-taken", Kind.PORT_TAKEN, r"EADDRINUSE|address already in use|the program at that port has not answered", "port taken", "another program listens at the port where ranks meet", "find it with ss -ltnp, or give another --master_port"),
    _one("cuda-oom", Kind.CUDA_OOM, r"(?<!ray\.exceptions\.)OutOfMemoryError|CUDA out of memory|Failed to CUDA (?:c|m)alloc|CUBLAS_STATUS_ALLOC_FAILED|too much for the memory of cuda|the smallest card has", "CUDA out of memory", "the GPU's memory is too small for this step", "smaller batch or bucket, more recomputation, or more GPUs to shard over; clusterctl gpus --processes shows others on the card"),
    _one("ecc", Kind.CUDA_ERROR, r"uncorrectable ECC", "ECC error", "the memory of a GPU gave wrong bits that it could not correct", f"{_NODE}, and reset or replace the GPU", "node"),
    _one("nvlink", Kind.CUDA_ERROR, r"uncorrectable NVLink error", "NVLink error", "an NVLink of a GPU, or the GPU at its other end, failed", f"{_NODE}; reset all its GPUs, and look for Xid 74 or 144 to 150 in its log", "node"),
    _one("gpu-lost", Kind.CUDA_ERROR, r"unable to determine the device handle|GPU is lost|fallen off the bus|no CUDA-capable device|no CUDA GPUs are available|GPU requires reset", "GPU lost", "the driver cannot reach the GPU any more", f"{_NODE}; reboot it, and check power and seating if it happens again", "node"),
    _one("gpu-missing", Kind.CUDA_ERROR, r"invalid device ordinal", "GPU missing", "this rank asked for a GPU that the node does not show: one is lost, hidden by CUDA_VISIBLE_DEVICES, or there are more ranks than GPUs", "compare nvidia-smi -L there with the slots in nodes.txt; clusterctl preflight", "node"),
    _one("gpu-busy", Kind.CUDA_ERROR, r"device\(s\) is/are busy", "GPU busy", "the GPU lets no further process in: another one has it in exclusive mode, or it is broken", "clusterctl gpus --processes; nvidia-smi -q -d COMPUTE there: the mode has to be Default", "node"),
    _one("driver-mismatch", Kind.CUDA_ERROR, r"driver/library version mismatch|unsupported display driver", "drivers do not match", "the driver's library and its kernel module are of different versions, as after an update without a reboot, or of a container", f"{_NODE}; reboot it", "node"),
    _one("driver-start", Kind.CUDA_ERROR, r"CUDA driver initialization failed|Found no NVIDIA driver|driver not loaded|nvmlInit\w{0,20} ?\(\) failed", "CUDA does not start", "CUDA cannot start on the node: the driver or the fabric manager is not up", "nvidia-smi and systemctl status nvidia-fabricmanager on the node; clusterctl preflight", "node"),
    _one("mps", Kind.CUDA_ERROR, r"MPS (?:client|server|control daemon)", "MPS failed", "the MPS server of the node failed or is full", "restart MPS there (echo quit | nvidia-cuda-mps-control), or train without it", "node"),
    _one("no-kernel", Kind.ENVIRONMENT, r"no kernel image is available|driver version is insufficient|driver on your system is too old|CUDA driver version found is|Torch not compiled with CUDA", "torch does not fit the driver", "torch was built for another GPU or a newer driver", "install torch for this driver; clusterctl preflight names the versions"),
    _one("device-assert", Kind.CUDA_ERROR, r"device-side assert", "device-side assert", "an index in a GPU kernel is out of range: most often a label or token number", "repeat with CUDA_LAUNCH_BLOCKING=1 to see the line"),
    _one("illegal-access", Kind.CUDA_ERROR, r"illegal memory access|Memory access fault by GPU|misaligned address|unspecified launch failure", "illegal memory access", "a GPU kernel used a wrong address", "repeat with CUDA_LAUNCH_BLOCKING=1; if another node does not have it, suspect the GPU"),
    _one("nvls", Kind.CUDA_ERROR, r"NVLink SHARP \(NVLS\)|NVLS multicast|cuMulticast|transport/nvls\.cc", "NVSwitch multicast failed", "the fabric manager or the NVSwitches of the node do not work", f"{_NODE}; systemctl restart nvidia-fabricmanager; NCCL_NVLS_ENABLE=0 goes without it, slower", "node"),
    _one("cudnn-engine", Kind.CUDA_ERROR, r"unable to find an engine to execute|unable to find a valid cuDNN algorithm|No (?:valid )?(?:execution plan|engine)s? (?:built|found|support)|CUDNN_STATUS_NOT_SUPPORTED|CUDNN_BACKEND\w{0,60} cudnnFinalize ?failed", "cuDNN has no way to compute it", "cuDNN found no way to compute this: too little memory of the GPU is free, or its libraries do not fit torch or the GPU", "clusterctl gpus --processes for others on the card; compare torch.backends.cudnn.version() with that which torch was built for (clusterctl env)"),
    _one("cuda-usage", Kind.CUDA_ERROR, r"CUDA error: (?:invalid|operation not)", "CUDA call refused", "the program called CUDA in a way that this GPU or its state does not allow", "repeat with CUDA_LAUNCH_BLOCKING=1 to see the line"),
    _one("cuda", Kind.CUDA_ERROR, r"(?<!unhandled )CUDA (?:driver |runtime )?(?:error|failure)|\bcudaError|CUDA_ERROR_|CUDNN_STATUS|CUBLAS_STATUS", "CUDA error", "CUDA, cuDNN or cuBLAS failed", "repeat with CUDA_LAUNCH_BLOCKING=1; look for an Xid of the node"),
    _one("slurm-limit", Kind.SIGNAL, r"CANCELLED AT \S{1,40} DUE TO (?:TIME LIMIT|PREEMPTION)", "ended by Slurm", "Slurm ended the job: its time was over, or a job of a higher priority took the nodes", "ask for more time (sbatch --time); let the trainer save before (sbatch --signal=TERM@120) and start again (--requeue)"),
    _one("slurm-credential", Kind.ENVIRONMENT, r"Job credential (?:expired|revoked)|Invalid job credential", "Slurm's credential refused", "the node did not accept the job's credential: its clock differs, munge does not run there, or the job waited too long", "clusterctl clock; systemctl status munge on that node", "node"),
    _one("no-program", Kind.ENVIRONMENT, r"execve\(\): [^\n]{1,300}: No such file", "program missing", "the program that the job starts is not on the node, or not in its PATH", "activate the environment in the job script, or write the program's full path"),
    _one("nccl-watchdog", Kind.NCCL_WATCHDOG, WATCHDOG, "watchdog timed out", "a collective did not end in time: some rank never joined it, or the network failed", _LOOK),
    _one("ended-by-launcher", Kind.PEER_LOST, r"is killed by signal: Terminated|^SystemExit: (?:143|130)$|SignalException", "ended by the launcher", "the launcher ended it with the others", _LOOK),
    _one("shared-memory", Kind.WORKER_DIED, r"DataLoader worker .{0,400}Bus error|insufficient shared memory", "shared memory full", "/dev/shm of the node or container is too small for the data loader", "enlarge /dev/shm (docker --shm-size), or use fewer workers"),
    _one("worker-died", Kind.WORKER_DIED, r"DataLoader worker .{0,400}(?:is killed by signal|exited unexpectedly)|Pin memory thread exited|decoding processes were killed", "loader died", *_LOADER_DIED),
    _one("another-rank", Kind.PEER_LOST, r"another rank has ended", "ended with another rank", "another rank ended", _LOOK),
    _one("nccl-shm", Kind.DISK_FULL, r"Error while creating shared memory segment|(?:failed to extend|error: failed to) \S{0,300}/dev/shm|/dev/shm/nccl-\S", "shared memory full", "/dev/shm of the node or container has no room for NCCL's buffers", "df -h /dev/shm there; remove /dev/shm/nccl-* of ended jobs; in a container docker --shm-size"),
    _one("memlock", Kind.ENVIRONMENT, r"ibv_(?:reg|create|alloc|open)\w{1,40} failed with error Cannot allocate memory", "memory cannot be locked", "the limit of locked memory of the node is too low for RDMA", "raise ulimit -l (memlock) to unlimited on every node, also for sshd and for containers"),
    _one("gpudirect", Kind.ENVIRONMENT, r"ibv_reg_\w{1,40} failed with error (?:Bad address|Operation not supported)|gdr_pin_buffer\w{0,40}\(.{0,80}\) failed", "GPUDirect fails", "the network card cannot reach the memory of the GPU", "modprobe nvidia-peermem on the node; clusterctl preflight; NCCL_NET_GDR_LEVEL=LOC goes without it"),
    _one("no-interface", Kind.ENVIRONMENT, r"no (?:usable listening |socket |IP )?interface found|no device found (?:matching|after excluding)", "no network interface", "NCCL_SOCKET_IFNAME or another setting names no interface of the node that is up", "ip -br addr there, and compare with the setting; clusterctl preflight checks the launch line"),
    _one("network-card", Kind.CUDA_ERROR, r"async fatal event|NET/IB : Unable to (?:open device|query)|Got non-fatal async event: port error", "network card failed", "a port of an RDMA card failed or went down", f"{_NODE}; clusterctl fabric shows its ports; look at cable and transceiver", "node"),
    _one("nccl-remote", Kind.PEER_LOST, r"remote process exited|ncclRemoteError|Got completion from peer|Got completion with error|NET/OFI [^\n]{0,200}completed with error|ibv_modify_qp failed with (?:110|113) ", "NCCL lost a peer", "NCCL lost the connection to another rank", _LOOK),
    _one("ib-settings", Kind.ENVIRONMENT, r"ibv_modify_qp failed with|incompatible (?:devices|with the local)|GID table changed", "RDMA ports do not fit", "the ports of two nodes cannot talk: GID, subnet or kind of link differ", "clusterctl fabric proposes NCCL_IB_HCA and NCCL_IB_GID_INDEX; compare with the launch line"),
    _one("service-refused", Kind.WORKER_EXCEPTION, rf"{_CLIENT}\w{{1,60}}: [^\n]{{0,2000}}(?:\b4(?:0[0-7]|1\d|22)\b|permission|unauthorized|forbidden|not found|api_key|CERTIFICATE_VERIFY_FAILED)|(?:RepositoryNotFound|GatedRepo|RevisionNotFound|(?<!Local)EntryNotFound|OfflineModeIsEnabled|NoCredentials)Error|\b4(?:0[0-7]|1\d|22) Client Error|api_key not configured|access a gated repo|\(AccessDenied\)|is not a valid model identifier listed on", "a service refused", "a service outside of the run refused: no such project, model or file, or no right to it", "log in on every node (wandb login, hf auth login), and check the name; the same input gives it again"),
    _one("service-unreachable", Kind.SERVICE, rf"HTTPS?Connection(?:Pool)?\(|Max retries exceeded with url|{_CLIENT}{_OF_NETWORK}|{_CLIENT}\w{{1,60}}: [^\n]{{0,2000}}timed out|LocalEntryNotFoundError|couldn't connect to '?https?:|CommError: (?:Run initialization|Error communicating)|couldn't reach \S{{1,200}} on the Hub|\b(?:429|5\d\d) (?:Client|Server) Error|CAS service error|Reqwest", "a service did not answer", "a service outside of the run did not answer: W&B, Hugging Face, an object store, or the way to it", "start it again; without the service: WANDB_MODE=offline; HF_HUB_OFFLINE=1 with weights and data from before"),
    _one("no-route", Kind.PEER_LOST, r"no route to host|network is unreachable|host is (?:down|unreachable)", "no way to a peer", "the network has no way to the node of another rank: it is down, a firewall refuses, or the wrong interface is used", "look whether that node is up, then at the firewall and at NCCL_SOCKET_IFNAME"),
    _one("nccl-version", Kind.ENVIRONMENT, r"Mismatched NCCL version", "NCCL versions differ", "ranks use different versions of NCCL", "make the environments of all nodes equal: clusterctl env"),
    _one("net-devices", Kind.ENVIRONMENT, r"mixed local (?:CollNet|Net) device counts", "network devices differ", "nodes show NCCL different numbers of network cards", "clusterctl fabric shows which node lacks one"),
    _one("same-gpu", Kind.WORKER_EXCEPTION, r"Duplicate GPU detected|Multiple Ranks are using the same GPU", "two ranks on one GPU", "two ranks use the same GPU", "torch.cuda.set_device(LOCAL_RANK) before the first collective; no more ranks on a node than GPUs"),
    _one("desync", Kind.WORKER_EXCEPTION, r"Detected mismatch between collectives on ranks|Message truncated : received", "ranks disagree", "ranks called different collectives", "the message names both calls; no branch before a collective may depend on the rank"),
    _one("peer-closed", Kind.PEER_LOST, r"connection (?:was )?(?:closed|reset|refused|abort|likely closed)|should dump\W{1,3}flag|TCPStore server has shut down|sendBytes failed|recvVector failed|(?:RayActor|ActorDied|WorkerCrashed)Error|socket closed|broken pipe|Horovod has been shut down|Collective ops is aborted|communicator was aborted|MPI_ERR_PROC_FAILED|another task died|failed to recv|pair closure|recvValue failed", "connection closed by peer", "the connection to another rank ended", _LOOK),
    _one("peer-timeout", Kind.PEER_LOST, r"socket timeout|client socket has (?:failed|timed out)|timed out waiting|Dist(?:Network|Store)Error|Gloo connect|failed to pass monitoredBarrier|heartbeat timeout|Barrier timed out|DeadlockDetected|\bEI0006\b|ncclTimeout|Rendezvous(?:Timeout|Closed|Connection)Error|Connect to \S{1,80} failed : Connection timed out", "waited too long for a peer", "another rank did not answer in time", "look whether all ranks started, and whether a firewall is between the nodes"),
    _one("library", Kind.ENVIRONMENT, r"cannot open shared object|undefined symbol|GLIBC\w{0,20} not found", "library does not fit", "a compiled library is missing or of another version", "make the environments of all nodes equal: clusterctl env"),
    _one("compiler", Kind.ENVIRONMENT, r"needs triton|needs Python's headers|C\+\+ compiler", "compiler missing", "torch.compile needs a compiler or headers that the node lacks", "install them on every node, or set compile = False"),
    _one("import", Kind.ENVIRONMENT, r"ModuleNotFoundError|ImportError|this Python has no ", "package missing", "a Python package is missing or does not fit", "make the environments of all nodes equal: clusterctl env"),
    _one("disk-quota", Kind.DISK_FULL, r"disk quota exceeded|(?:errno|os error|Os { code:) 122\b|EDQUOT", "quota used up", "the quota of this user is used up", "quota -s; delete old checkpoints or ask for more"),
    _one("open-files", Kind.WORKER_EXCEPTION, r"too many open files|errno 24\]", "too many open files", "the limit of open files is too low", "raise ulimit -n on the nodes, or use fewer workers"),
    _one("host-memory", Kind.WORKER_EXCEPTION, r"^MemoryError|cannot allocate memory|node running low on memory|killed due to (?:the )?(?:node|memory pressure)|Failed to malloc \d|malloc\(size=\d{1,20}\) returned null|Failed to CUDA host alloc|DefaultCPUAllocator: (?:can't|not enough)", "host out of memory", "the machine's memory is used up", "fewer loader workers or a smaller cache; free -g on the node"),
    _one("disk-full", Kind.DISK_FULL, r"no space left|(?:errno|os error|Os { code:) 28\b|ENOSPC|\b(?:has|have) [\d.,]{1,30} \w{0,2}B free|it needs .{1,200} free$", "disk full", "no space (or inode) is left where the run writes", "df -h and df -i there; clusterctl plan-checkpoints says what the run needs"),
    _one("nccl-usage", Kind.WORKER_EXCEPTION, r"ncclInvalid(?:Usage|Argument)|NCCL[^\n]{0,200}invalid (?:usage|argument) \(run with", "NCCL call refused", "the program or a setting gave NCCL what it cannot use", "repeat with NCCL_DEBUG=WARN; its last line names the value"),
    _one("nccl-system", Kind.CUDA_ERROR, r"nccl(?:UnhandledCuda|System|Internal)Error|unhandled (?:cuda|system) error|internal error - please report this issue to the NCCL|NCCL_ERROR_\w", "NCCL error", "NCCL failed in CUDA or in a system call", "repeat with NCCL_DEBUG=INFO; its last lines name the call"),
    _one("stale-handle", Kind.STORAGE, r"stale file handle|(?:errno|os error|Os { code:) 116\b", "stale file handle", "the file server replaced or lost a file or an export", "mount it again on the node; compare the node's mount with the others"),
    _one("read-only", Kind.STORAGE, r"read-only file system|(?:errno|os error|Os { code:) 30\b", "read-only file system", "the kernel made the file system read-only after an error, or it was mounted so", "dmesg of the node; check the disk before it is mounted again"),
    _one("storage", Kind.STORAGE, r"(?:errno|os error|Os { code:) (?:5|107|121)\b|input/output error|endpoint is not connected|remote i/o error", "input/output error", "a file system or its server failed", "dmesg of the node and of the file server"),
    _one("write-failed", Kind.STORAGE, r"PytorchStreamWriter failed|inline_container\.cc:\d{1,6}\] ?\. unexpected pos|basic_ios::clear: iostream error|iostream error|Error while serializing: ?(?:IoError|I/O error)|SafetensorError: I/O error|errno = (?:5|28|122)\b|file write failed|fsync failed", "write failed", "a file could not be written to its end: the disk is full, a quota is used up, or the storage failed", "df -h, df -i and quota -s where it is written; then dmesg of the node and of the file server"),
    _one("diverged", Kind.DIVERGED, r"\bDiverged\b|all ranks stop\b|rollbacks did not get past step|steps? \d{1,18} to \d{1,18} is .{0,200} times the median|(?:loss|norm|gradients?|weights|average|EMA)\b.{0,400} (?:is|are) (?:[-+]?inf|nan|not finite|non-finite|no longer a number)|non-?finite|FloatingPointError|diverged", "diverged", "loss, gradients or weights are not finite", "lower the learning rate, or go on from an older checkpoint; look at the data of that step"),
    _one("checkpoint", Kind.CHECKPOINT_INVALID, r"holds no complete checkpoint|is not complete: it has no|its SHA-256 differs|is of another model|is not of this model|the files of ranks .{1,1000} are missing|in loading state_dict|PytorchStreamReader failed|SafetensorError|invalid load key|UnpicklingError|not a valid file of weights|manifest\.json cannot be read|sampler's state is damaged|" + IN_TEXT + r"\S{0,300} (?:cannot be read|has no|holds|is missing|is damaged|has [\d,]{1,30} bytes)|CheckpointError", "checkpoint damaged", "a checkpoint or weights are damaged, incomplete or of another model", "go on from the checkpoint before it (--load), or check the config's model"),
    _one("missing-file", Kind.MISSING_FILE, r"FileNotFoundError|NotADirectoryError|Parent directory \S{1,1000} does not exist|no such file|errno 2\]|^there (?:is|are) no (?:\S*/\S*|\S+ for \S+|config file|checkpoint|weights|dataset)", "file missing", "a file or folder is not there, or not on this node", "check the path on every node: clusterctl run 'ls -d PATH'"),
    _one("stopped", Kind.USER_STOP, r"^(?:KeyboardInterrupt|interrupted)\b", "interrupted", "somebody pressed Ctrl-C", "start it again"),
    _one("permission", Kind.WORKER_EXCEPTION, r"PermissionError|errno:? 13\b|^(?:RuntimeError|OSError): Permission denied", "permission denied", "this user may not read or write that path", "ls -ld the path on that node, as the user of the run"),
)  # fmt: skip

NAMED = {one.name: one for one in SIGNATURES}


def find(text: str) -> Signature | None:
    """That of an error; None for one that no signature knows."""
    return _find(text[:LONGEST])


@functools.lru_cache(1024)  # the ranks that follow all say the same
def _find(text: str) -> Signature | None:
    by_cuda = cuda_errors.find(text)
    if by_cuda is not None and by_cuda.signature != GENERAL:
        return NAMED[by_cuda.signature]
    by_words = next((one for one in SIGNATURES if one.words.search(text)), None)
    if by_cuda is not None and (by_words is None or by_words.name == "cuda"):
        return NAMED[GENERAL]
    return by_words


# What a class means where no text says more, and what to do; by the name with its number first.
ADVICE: dict[str, tuple[str, str]] = {
    "oom-kernel": ("the kernel, or a guard that says so, ended the process because memory was used up", "fewer loader workers or a smaller cache, a larger memory limit, or fewer ranks a node"),
    "signal-9": ("somebody or something sent SIGKILL: a person, a memory guard, a batch system", "dmesg of the node, and the log of the batch system; the kernel's own kills are oom-kernel"),
    "signal-11": ("the program used a wrong address: a library in C or CUDA, rarely memory that is broken", "repeat with PYTHONFAULTHANDLER=1; if one node alone has it, leave it out"),
    "signal-7": ("a mapped file or /dev/shm could not be read or written", "df -h /dev/shm on the node; check the file system"),
    "signal-1": ("the terminal or the connection that it was started from ended (SIGHUP)", "start it where no terminal is needed: clusterctl launch --detach, tmux or a service; nohup alone does not help, because torchrun takes the signal"),
    "signal-4": ("a library was built for another CPU", "compare the CPUs of the nodes, and build or install the library for the oldest"),
    "signal-8": ("a library divided by zero, most often cuBLAS or another one in C of a wrong version", "repeat with PYTHONFAULTHANDLER=1; make the environments of all nodes equal: clusterctl env"),
    "signal": ("a signal ended the process", "read dmesg of the node; nothing records who sends a signal"),
    "worker-died": _LOADER_DIED,
    "hang": ("no rank took a step within the limit", "read the stacks of that moment in stacks/ (index.html)"),
    "node-unreachable": ("the node answers no more: power, network, kernel", "clusterctl preflight on that node; its console or BMC says more"),
    "node-stopped": ("the node went down in order, as at a reboot, or its agent was ended or heard no supervisor for too long", "nothing, where that was meant; the node is used again once it answers"),
    "signal-15": ("somebody or something sent SIGTERM: a service manager, a memory guard, a person", "read the node's journal (journalctl) of that minute; to end a run of your own use clusterctl stop, because a killed rank is started again"),
    "xid": ("the NVIDIA driver logged an error of a GPU", "clusterctl preflight on that node; its kernel log has the line"),
    "user-stop": ("it was asked to stop", "start it again"),
    "worker-exception": ("the program itself raised an error that no signature knows", "read the lines above; the same input gives it again"),
    "refused": ("the trainer refused it: the sentence says what, and the hint below it what to do", "put right what the sentence names; the same input gives it again"),
    "unknown": ("nothing says why; a process that ends without a word was killed by a signal, as a rule", "read its last lines, and dmesg of its node"),
}  # fmt: skip


def advice(name: str) -> tuple[str, str]:
    """(meaning, what to do) of a class: `signal-9`, else `signal`."""
    kind = next((str(kind) for kind in Kind if name.startswith(kind.value)), str(Kind.UNKNOWN))
    return ADVICE.get(name) or ADVICE.get(kind) or ADVICE["unknown"]
