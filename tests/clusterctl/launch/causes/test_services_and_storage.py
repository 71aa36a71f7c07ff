"""Errors of services and of writing, in the forms in which users report them."""

from __future__ import annotations

import pytest

from clusterctl.launch.causes import signatures
from clusterctl.launch.causes.texts import classify

POOL = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /a"
TEXTS = {
    "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting": "service-unreachable",
    "wandb.errors.CommError: Error communicating with wandb process": "service-unreachable",
    f"requests.exceptions.ConnectionError: {POOL} (Caused by NewConnectionError('Connection refused'))": "service-unreachable",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out. (read timeout=10)": "service-unreachable",
    "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))": "service-unreachable",
    f"requests.exceptions.SSLError: {POOL} (Caused by SSLError(SSLEOFError(8, 'EOF occurred')))": "service-unreachable",
    "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/a": "service-unreachable",
    "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/a": "service-unreachable",
    "httpx.ConnectTimeout: timed out": "service-unreachable",
    "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files": "service-unreachable",
    "huggingface_hub.utils._errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub": "service-unreachable",
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL": "service-unreachable",
    "wandb.errors.CommError: It appears that you do not have permission to access the requested resource. (Error 404: Not Found)": "service-refused",
    "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])": "service-refused",
    "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)": "service-refused",
    "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/a": "service-refused",
    "OSError: You are trying to access a gated repo.": "service-refused",
    "OSError: a/b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'": "service-refused",
    f"requests.exceptions.SSLError: {POOL} (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self signed')))": "service-refused",
    "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 11347827264 vs 11347827160": "write-failed",
    "RuntimeError: basic_ios::clear: iostream error": "write-failed",
    "terminate called after throwing an instance of 'std::__ios_failure': basic_ios::clear: iostream error": "write-failed",
    "safetensors_rust.SafetensorError: Error while serializing: I/O error: Invalid argument (os error 22)": "write-failed",
    'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })': "disk-full",
    "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)": "disk-full",
    'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 5, kind: Uncategorized, message: "Input/output error" })': "storage",
    "safetensors_rust.SafetensorError: Error while serializing: I/O error: Disk quota exceeded (os error 122)": "disk-quota",
    "OSError: [Errno 122] x": "disk-quota",
    "RuntimeError: Parent directory /out/x does not exist.": "missing-file",
    "safetensors_rust.SafetensorError: Error while deserializing header: header too large": "checkpoint",
    "RuntimeError: FIND was unable to find an engine to execute this computation": "cudnn-engine",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.": "host-memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": "cuda-oom",
    "ImportError: cannot import name 'x' from 'huggingface_hub.utils' (/a/huggingface_hub/utils/__init__.py)": "import",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_has_its_signature(text: str) -> None:
    found = signatures.find(text)
    assert found is not None
    assert found.name == TEXTS[text]


def test_what_may_go_away_is_told_from_what_comes_again() -> None:
    again = {TEXTS[text]: classify(text).kind.is_deterministic for text in TEXTS}
    assert again["service-refused"]
    assert not again["service-unreachable"]
    assert not again["write-failed"]


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: shapes differ, see https://pytorch.org/docs/stable/notes",
        "ValueError: 404 clips were expected",
        "wandb.errors.UsageError: project name is too long",
    ],
)
def test_words_of_a_program_are_no_service(text: str) -> None:
    assert signatures.find(text) is None


def test_error_of_an_exit_code_is_no_error_of_storage() -> None:
    assert signatures.find("RuntimeError: ffmpeg ended with exit code: 5") is None
