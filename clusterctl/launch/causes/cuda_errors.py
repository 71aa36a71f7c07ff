"""The errors of CUDA's runtime and driver: number, names, text, and the signature of each. Data.

Numbers, names and texts are those that libcudart and cuda.h of CUDA 13.0 have, with some of older
versions. One error has one number and one text in both; a program prints the text, the name, or the
number alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class CudaError(NamedTuple):
    """`runtime` is the name without cudaError, `driver` that without CUDA_ERROR_; "" for none."""

    number: int
    runtime: str
    driver: str
    signature: str  # in signatures.SIGNATURES
    text: str  # a long one without its end


# By signature: number, name in the runtime, text. The driver's name is the same in other letters
# (IllegalAddress, ILLEGAL_ADDRESS) or stands behind `=`.
_TABLE = {
    "cuda-oom": """
2 MemoryAllocation=OUT_OF_MEMORY out of memory
""",
    "driver-start": """
3 InitializationError=NOT_INITIALIZED initialization error
102 DeviceNotLicensed device doesn't have valid Grid license
103 SoftwareValidityNotEstablished integrity checks failed
127 StartupFailure startup failure in cuda runtime
304 OperatingSystem OS call failed or operation not supported on this OS
802 SystemNotReady system not yet initialized
999 Unknown unknown error
""",
    "no-kernel": """
34 StubLibrary CUDA driver is a stub library
35 InsufficientDriver CUDA driver version is insufficient for CUDA runtime version
36 CallRequiresNewerDriver API call is not supported in the installed CUDA driver
200 InvalidKernelImage=INVALID_IMAGE device kernel image is invalid
209 NoKernelImageForDevice=NO_BINARY_FOR_GPU no kernel image is available for execution on the
218 InvalidPtx a PTX JIT compilation failed
221 JitCompilerNotFound PTX JIT compiler library not found
222 UnsupportedPtxVersion the provided PTX was compiled with an unsupported toolchain.
223 JitCompilationDisabled PTX JIT compilation was disabled
224 UnsupportedExecAffinity the provided execution affinity is not supported
225 UnsupportedDevSideSync=UNSUPPORTED_DEVSIDE_SYNC the provided PTX contains unsupported call to
300 InvalidSource device kernel image is invalid
302 SharedObjectSymbolNotFound shared object symbol not found
303 SharedObjectInitFailed shared object initialization failed
811 CdpNotSupported is using CUDA Dynamic Parallelism, but the current configuration, like MPS,
812 CdpVersionMismatch unsupported interaction between different versions of CUDA Dynamic
""",
    "gpu-busy": """
46 DevicesUnavailable=DEVICE_UNAVAILABLE CUDA-capable device(s) is/are busy or unavailable
216 DeviceAlreadyInUse=CONTEXT_ALREADY_IN_USE exclusive-thread device already in use by a different
""",
    "illegal-access": """
53 PriorLaunchFailure unspecified launch failure in prior launch
700 IllegalAddress an illegal memory access was encountered
714 HardwareStackError hardware stack error
715 IllegalInstruction an illegal instruction was encountered
716 MisalignedAddress misaligned address
717 InvalidAddressSpace operation not supported on global/shared address space
718 InvalidPc invalid program counter
719 LaunchFailure=LAUNCH_FAILED unspecified launch failure
""",
    "gpu-lost": """
100 NoDevice no CUDA-capable device is detected
""",
    "gpu-missing": """
101 InvalidDevice invalid device ordinal
""",
    "ecc": """
214 ECCUncorrectable uncorrectable ECC error encountered
""",
    "nvlink": """
220 NvlinkUncorrectable uncorrectable NVLink error detected during the execution
226 Contained Invalid access of peer GPU memory over nvlink or a hardware error
""",
    "device-assert": """
710 Assert device-side assert triggered
""",
    "driver-mismatch": """
803 SystemDriverMismatch system has unsupported display driver / cuda driver combination
804 CompatNotSupportedOnDevice forward compatibility was attempted on non supported HW
""",
    "mps": """
805 MpsConnectionFailed MPS client failed to connect to the MPS control daemon or the MPS server
806 MpsRpcFailure the remote procedural call between the MPS server and the MPS client failed
807 MpsServerNotReady MPS server is not ready to accept new MPS client requests
808 MpsMaxClientsReached the hardware resources required to create MPS client have been exhausted
809 MpsMaxConnectionsReached the hardware resources required to support device connections have
810 MpsClientTerminated the MPS client has been terminated by the server
""",
    "cuda-usage": """
1 InvalidValue invalid argument
4 CudartUnloading=DEINITIALIZED driver shutting down
5 ProfilerDisabled profiler disabled while using external profiling tool
6 ProfilerNotInitialized profiler not initialized: call cudaProfilerInitialize()
7 ProfilerAlreadyStarted profiler already started
8 ProfilerAlreadyStopped profiler already stopped
9 InvalidConfiguration invalid configuration argument
12 InvalidPitchValue invalid pitch argument
13 InvalidSymbol invalid device symbol
16 InvalidHostPointer invalid host pointer
17 InvalidDevicePointer invalid device pointer
18 InvalidTexture invalid texture reference
19 InvalidTextureBinding texture is not bound to a pointer
20 InvalidChannelDescriptor invalid channel descriptor
21 InvalidMemcpyDirection invalid copy direction for memcpy
22 AddressOfConstant invalid address of constant
23 TextureFetchFailed fetch from texture failed
24 TextureNotBound cannot fetch from a texture that is not bound
25 SynchronizationError incorrect use of __syncthreads()
26 InvalidFilterSetting linear filtering not supported for non-float type
27 InvalidNormSetting read as normalized float not supported for data type
28 MixedDeviceExecution device emulation mode and device execution mode cannot be mixed
31 NotYetImplemented feature not yet implemented
32 MemoryValueTooLarge memory size or pointer value too large to fit in 32 bit
37 InvalidSurface invalid surface reference
43 DuplicateVariableName duplicate global variable looked up by string name
44 DuplicateTextureName duplicate texture looked up by string name
45 DuplicateSurfaceName duplicate surface looked up by string name
49 IncompatibleDriverContext incompatible driver context
52 MissingConfiguration __global__ function call is not configured
65 LaunchMaxDepthExceeded launch would exceed maximum depth of nested launches
66 LaunchFileScopedTex launch failed because kernel uses unsupported, file-scoped textures (texture
67 LaunchFileScopedSurf launch failed because kernel uses unsupported, file-scoped surfaces
68 SyncDepthExceeded cudaDeviceSynchronize failed because caller's grid depth exceeds
69 LaunchPendingCountExceeded launch failed because launch would exceed
98 InvalidDeviceFunction invalid device function
201 DeviceUninitialized=INVALID_CONTEXT invalid device context
202 -=CONTEXT_ALREADY_CURRENT
205 MapBufferObjectFailed=MAP_FAILED mapping of buffer object failed
206 UnmapBufferObjectFailed=UNMAP_FAILED unmapping of buffer object failed
207 ArrayIsMapped array is mapped
208 AlreadyMapped resource already mapped
210 AlreadyAcquired resource already acquired
211 NotMapped resource not mapped
212 NotMappedAsArray resource not mapped as array
213 NotMappedAsPointer resource not mapped as pointer
215 UnsupportedLimit limit is not supported on this architecture
217 PeerAccessUnsupported peer access is not supported between these two devices
219 InvalidGraphicsContext invalid OpenGL or DirectX context
301 FileNotFound file not found
400 InvalidResourceHandle=INVALID_HANDLE invalid resource handle
401 IllegalState the operation cannot be performed in the present state
402 LossyQuery attempted introspection would be semantically lossy
500 SymbolNotFound=NOT_FOUND named symbol not found
600 NotReady device not ready
701 LaunchOutOfResources too many resources requested for launch
702 LaunchTimeout the launch timed out and was terminated
703 LaunchIncompatibleTexturing launch uses incompatible texturing mode
704 PeerAccessAlreadyEnabled peer access is already enabled
705 PeerAccessNotEnabled peer access has not been enabled
708 SetOnActiveProcess=PRIMARY_CONTEXT_ACTIVE cannot set while device is active in this process
709 ContextIsDestroyed context is destroyed
711 TooManyPeers peer mapping resources exhausted
712 HostMemoryAlreadyRegistered part or all of the requested memory range is already mapped
713 HostMemoryNotRegistered pointer does not correspond to a registered memory region
720 CooperativeLaunchTooLarge too many blocks in cooperative launch
721 TensorMemoryLeak tensor memory not completely freed
800 NotPermitted operation not permitted
801 NotSupported operation not supported
900 StreamCaptureUnsupported operation not permitted when stream is capturing
901 StreamCaptureInvalidated operation failed due to a previous error during capture
902 StreamCaptureMerge operation would result in a merge of separate capture sequences
903 StreamCaptureUnmatched capture was not ended in the same stream as it began
904 StreamCaptureUnjoined capturing stream has unjoined work
905 StreamCaptureIsolation dependency created on uncaptured work in another stream
906 StreamCaptureImplicit operation would make the legacy stream depend on a capturing blocking
907 CapturedEvent operation not permitted on an event last recorded in a capturing stream
908 StreamCaptureWrongThread attempt to terminate a thread-local capture sequence from another
909 Timeout wait operation timed out
910 GraphExecUpdateFailure the graph update was not performed because it included changes which
911 ExternalDevice an async error has occured in external entity outside of CUDA
912 InvalidClusterSize a kernel launch error has occurred due to cluster misconfiguration
913 FunctionNotLoaded the function handle is not loaded when calling an API that requires a loaded
914 InvalidResourceType one or more resources passed in are not valid resource types for the
915 InvalidResourceConfiguration one or more resources are insufficient or non-applicable for the
916 -=KEY_ROTATION
""",
}
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _row(signature: str, line: str) -> CudaError:
    number, names, text = (*line.split(" ", 2), "")[:3]
    runtime, _, driver = names.partition("=")
    runtime = runtime.strip("-")
    return CudaError(
        int(number), runtime, driver or _WORDS.sub("_", runtime).upper(), signature, text
    )


ERRORS = tuple(
    sorted(_row(name, line) for name, lines in _TABLE.items() for line in lines.split("\n") if line)
)
_OLDER_TEXTS = {
    "all CUDA-capable devices are busy or unavailable": 46,
    "system has unsupported display driver": 803,
    "peer mapping resources exhausted": 711,
    "CUDA unknown error": 999,
}
_BY_NUMBER = {one.number: one for one in ERRORS}
_BY_NAME = {name: one for one in ERRORS for name in (one.runtime, one.driver) if name}
_BY_TEXT = {one.text.lower(): one for one in reversed(ERRORS) if one.text}
_BY_TEXT |= {text.lower(): _BY_NUMBER[number] for text, number in _OLDER_TEXTS.items()}

_NAMES = re.compile(r"\b(?:cudaError([A-Z]\w{2,60})|CUDA_ERROR_([A-Z]\w{2,60}))\b")
# The longest first: "unspecified launch failure in prior launch" begins with another one.
_TEXTS = re.compile(
    "|".join(map(re.escape, sorted(_BY_TEXT, key=len, reverse=True))), re.IGNORECASE
)
_NUMBERS = re.compile(
    r"\bcuda(?: driver| runtime)? (?:error|failure)(?: code)?[ :(=]{1,3}(\d{1,3})\b", re.IGNORECASE
)
# What stands before a text where CUDA has given it: the text alone is said by others, too.
_SAID_BY_CUDA = re.compile(
    r"cuda(?:[ _](?:driver|runtime|api))?[ _]?(?:error|failure|unknown)|GPUassert|Triton Error|"
    r"cudaGetDeviceCount|\bcuInit|\bcu(?:da)?[A-Z]\w{1,40}[^\n]{0,40}fail|CUDA_\w{1,30} fail",
    re.IGNORECASE,
)
_BEFORE = 240  # characters in which that is looked for
_OLD_NUMBERS = range(3, 100)  # before CUDA 10.1 these had other meanings


def find(text: str) -> CudaError | None:
    """The error of CUDA that a text states, by its name, its text or its number."""
    for found in _NAMES.finditer(text):
        if known := _BY_NAME.get(found[1] or found[2]):
            return known
    for found in _TEXTS.finditer(text):
        said = text[max(0, found.start() - _BEFORE) : found.start()].rstrip()
        is_given = not said[-1:].isalpha() or said.lower().endswith(("error", "failure", "failed"))
        whole = text[max(0, found.start() - _BEFORE) : found.end()]
        if is_given and _SAID_BY_CUDA.search(whole):
            return _BY_TEXT[found[0].lower()]
    number = _NUMBERS.search(text)
    if number and int(number[1]) not in _OLD_NUMBERS:
        return _BY_NUMBER.get(int(number[1]))
    return None
