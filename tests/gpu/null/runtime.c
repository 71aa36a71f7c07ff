/* CUDA's runtime over card.h, for the calls that torch makes. build.py makes the others refuse by name. */
#include "card.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <time.h>

int copied(void *to, const void *from, size_t bytes);
static __thread cudaError_t last;
static cudaError_t said(int error) { return error ? (last = (cudaError_t)error) : cudaSuccess; }
#define CALL(...) cudaError_t __VA_ARGS__
#define FINE { return cudaSuccess; }

/* Kernels: their names come when a library registers them, a launch names its stub on the host. */
typedef void (*registered_t)(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *);
void __cudaRegisterFunction(void **module, const char *stub, char *own, const char *name, int limit, uint3 *thread,
                            uint3 *block, dim3 *size, dim3 *grid, int *warp) {
  static registered_t real;
  if (!real) real = (registered_t)dlsym(RTLD_NEXT, "__cudaRegisterFunction");
  kernel_named(stub, name);
  if (real) real(module, stub, own, name, limit, thread, block, size, grid, warp);
}
static cudaError_t launch(const void *kernel, dim3 g, dim3 b, size_t shared, cudaStream_t stream) {
  unsigned grid[3] = {g.x, g.y, g.z}, block[3] = {b.x, b.y, b.z};
  return said(launched(kernel, grid, block, shared, stream));
}
CALL(cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s)) { return launch(f, g, b, shared, s); }
CALL(cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args)) { return launch(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream); }
CALL(__cudaLaunchKernel(cudaKernel_t f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s)) { return launch(f, g, b, shared, s); }
CALL(__cudaGetKernel(cudaKernel_t *kernel, const void *stub)) { *kernel = (cudaKernel_t)stub; return cudaSuccess; }
CALL(cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value)) {
  if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > SMEM_OPT_IN) return said(refused("more shared memory than a block may have", f) ? cudaErrorInvalidValue : 0);
  kernel_may_use(f, value > SMEM_DEFAULT ? value : SMEM_DEFAULT);
  return cudaSuccess;
}
CALL(cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)) {
  memset(a, 0, sizeof *a);
  a->binaryVersion = a->ptxVersion = 90;
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = SMEM_DEFAULT;
  return cudaSuccess;
}
CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags)) { *n = 2; return cudaSuccess; }

/* Memory */
CALL(cudaMalloc(void **p, size_t n)) { return said(take(p, n, ON_DEVICE)); }
CALL(cudaMallocAsync(void **p, size_t n, cudaStream_t s)) { return said(take(p, n, ON_DEVICE)); }
CALL(cudaHostAlloc(void **p, size_t n, unsigned flags)) { return said(take(p, n, ON_HOST)); }
CALL(cudaFree(void *p)) { give(p); return cudaSuccess; }
CALL(cudaFreeAsync(void *p, cudaStream_t s)) { give(p); return cudaSuccess; }
CALL(cudaFreeHost(void *p)) { give(p); return cudaSuccess; }
CALL(cudaHostRegister(void *p, size_t n, unsigned flags)) FINE
CALL(cudaHostUnregister(void *p)) FINE
CALL(cudaMemGetInfo(size_t *free, size_t *total)) { *total = card_bytes(); *free = *total - card_used(current_device()); return cudaSuccess; }
CALL(cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)) {
  memset(a, 0, sizeof *a);
  enum kind kind = kind_of(p, &a->device);
  a->type = kind == ON_DEVICE ? cudaMemoryTypeDevice : kind == ON_HOST ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->devicePointer = kind == NOWHERE ? NULL : (void *)p;
  a->hostPointer = kind == ON_HOST ? (void *)p : NULL;
  return cudaSuccess;
}
CALL(cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)) { copied(to, from, n); waited(); return cudaSuccess; }
CALL(cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)) { if (copied(to, from, n)) waited(); return cudaSuccess; }
CALL(cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s)) { copied(to, from, n); return cudaSuccess; }
CALL(cudaMemcpy2DAsync(void *to, size_t rows_to, const void *from, size_t rows_from, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)) {
  for (size_t row = 0; row < height && width * height < 64u << 20; row++) memcpy((char *)to + row * rows_to, (const char *)from + row * rows_from, width);
  return cudaSuccess;
}
CALL(cudaMemcpyToSymbol(const void *to, const void *from, size_t n, size_t at, enum cudaMemcpyKind kind)) FINE
CALL(cudaGetSymbolAddress(void **p, const void *symbol)) { static char room[1 << 16]; *p = room; return cudaSuccess; }
CALL(cudaMemset(void *p, int value, size_t n)) { if (n <= 1 << 20) memset(p, value, n); return cudaSuccess; }
CALL(cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)) { return cudaMemset(p, value, n); }
CALL(cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)) { *pool = (cudaMemPool_t)16; return cudaSuccess; }
CALL(cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr a, void *value)) { *(uint64_t *)value = 0; return cudaSuccess; }
CALL(cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr a, void *value)) FINE

/* The card */
CALL(cudaGetDeviceCount(int *n)) { *n = device_count(); return *n ? cudaSuccess : said(cudaErrorNoDevice); }
CALL(cudaGetDevice(int *d)) { *d = current_device(); return cudaSuccess; }
CALL(cudaSetDevice(int d)) {
  if (d < 0 || d >= device_count()) return said(cudaErrorInvalidDevice);
  use_device(d);
  return cudaSuccess;
}
CALL(cudaDriverGetVersion(int *v)) { *v = CUDART_VERSION; return cudaSuccess; }
CALL(cudaRuntimeGetVersion(int *v)) { *v = CUDART_VERSION; return cudaSuccess; }
CALL(cudaDeviceSynchronize(void)) { waited(); return cudaSuccess; }
CALL(cudaDeviceCanAccessPeer(int *can, int a, int b)) { *can = 1; return cudaSuccess; }
CALL(cudaDeviceEnablePeerAccess(int a, unsigned flags)) FINE
CALL(cudaDeviceGetPCIBusId(char *text, int n, int d)) { snprintf(text, n, "0000:%02x:00.0", d + 1); return cudaSuccess; }
CALL(cudaDeviceGetStreamPriorityRange(int *least, int *greatest)) { *least = 0; *greatest = -5; return cudaSuccess; }
CALL(cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d)) { *v = card_attribute(a); return cudaSuccess; }
CALL(cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, CARD_NAME);
  p->totalGlobalMem = card_bytes();
  p->major = card_attribute(cudaDevAttrComputeCapabilityMajor);
  p->minor = card_attribute(cudaDevAttrComputeCapabilityMinor);
  p->multiProcessorCount = card_attribute(cudaDevAttrMultiProcessorCount);
  p->warpSize = card_attribute(cudaDevAttrWarpSize);
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  for (int i = 0; i < 3; i++) {
    p->maxThreadsDim[i] = card_attribute(cudaDevAttrMaxBlockDimX + i);
    p->maxGridSize[i] = card_attribute(cudaDevAttrMaxGridDimX + i);
  }
  p->sharedMemPerBlock = SMEM_DEFAULT;
  p->sharedMemPerBlockOptin = SMEM_OPT_IN;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = card_attribute(cudaDevAttrL2CacheSize);
  p->memoryBusWidth = card_attribute(cudaDevAttrGlobalMemoryBusWidth);
  p->unifiedAddressing = p->managedMemory = p->canMapHostMemory = p->concurrentKernels = 1;
  p->totalConstMem = 65536;
  p->asyncEngineCount = 3;
  p->pciBusID = d + 1;
  p->textureAlignment = 512;
  p->reservedSharedMemPerBlock = 1024;
  return cudaSuccess;
}
/* Numbers of an H100 SXM, as its driver gives them; 1 (a feature that is there) for all others. */
int card_attribute(int attribute) {
  switch (attribute) {
  case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
  case cudaDevAttrMaxBlockDimZ: return 64;
  case cudaDevAttrMaxGridDimX: return 2147483647;
  case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
  case cudaDevAttrMaxSharedMemoryPerBlock: return SMEM_DEFAULT;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: return SMEM_OPT_IN;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
  case cudaDevAttrTotalConstantMemory: case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
  case cudaDevAttrWarpSize: case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
  case cudaDevAttrClockRate: return 1980000;
  case cudaDevAttrMemoryClockRate: return 2619000;
  case cudaDevAttrTextureAlignment: return 512;
  case cudaDevAttrMultiProcessorCount: return 132;
  case cudaDevAttrGlobalMemoryBusWidth: return 5120;
  case cudaDevAttrL2CacheSize: return 52428800;
  case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
  case cudaDevAttrComputeCapabilityMajor: return 9;
  case cudaDevAttrComputeCapabilityMinor: return 0;
  case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
  }
  return 1;
}

/* Errors, events, streams. Time is the host's. */
CALL(cudaGetLastError(void)) { cudaError_t error = last; last = cudaSuccess; return error; }
CALL(cudaPeekAtLastError(void)) { return last; }
struct event { struct timespec at; };
CALL(cudaEventCreate(cudaEvent_t *e)) { *e = calloc(1, sizeof(struct event)); return cudaSuccess; }
CALL(cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)) { return cudaEventCreate(e); }
CALL(cudaEventDestroy(cudaEvent_t e)) { free(e); return cudaSuccess; }
CALL(cudaEventRecord(cudaEvent_t e, cudaStream_t s)) { clock_gettime(CLOCK_MONOTONIC, &((struct event *)e)->at); return cudaSuccess; }
CALL(cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)) { return cudaEventRecord(e, s); }
CALL(cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)) {
  struct timespec from = ((struct event *)a)->at, to = ((struct event *)b)->at;
  *ms = (to.tv_sec - from.tv_sec) * 1e3 + (to.tv_nsec - from.tv_nsec) / 1e6;
  return cudaSuccess;
}
CALL(cudaEventQuery(cudaEvent_t e)) FINE
CALL(cudaEventSynchronize(cudaEvent_t e)) { waited(); return cudaSuccess; }
CALL(cudaStreamCreate(cudaStream_t *s)) { *s = new_stream(); return cudaSuccess; }
CALL(cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)) { return cudaStreamCreate(s); }
CALL(cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)) { return cudaStreamCreate(s); }
CALL(cudaStreamDestroy(cudaStream_t s)) FINE
CALL(cudaStreamGetPriority(cudaStream_t s, int *priority)) { *priority = 0; return cudaSuccess; }
CALL(cudaStreamQuery(cudaStream_t s)) FINE
CALL(cudaStreamSynchronize(cudaStream_t s)) { waited(); return cudaSuccess; }
CALL(cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)) FINE
CALL(cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
CALL(cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *g,
                              const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *n)) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
CALL(cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned flags)) { f(s, cudaSuccess, data); return cudaSuccess; }
CALL(cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data)) { f(data); return cudaSuccess; }
CALL(cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)) FINE
CALL(cudaProfilerStart(void)) FINE
CALL(cudaProfilerStop(void)) FINE
CALL(cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result)) {
  char versioned[128];
  *call = dlsym(RTLD_DEFAULT, name);
  for (int i = 3; i > 1 && !*call; i--) { snprintf(versioned, sizeof versioned, "%s_v%d", name, i); *call = dlsym(RTLD_DEFAULT, versioned); }
  if (result) *result = *call ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*call && getenv("NULL_GPU_VERBOSE")) fprintf(stderr, "null GPU: the driver has no %s\n", name);
  return cudaSuccess; /* as the runtime does: the result says what was not found */
}
