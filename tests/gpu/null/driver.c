/* CUDA's driver over card.h, for the calls of torch, Triton and inductor's own launcher. */
#include "card.h"
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>

struct segment;
int reserve(void **at, size_t bytes);
int unreserve(void *at, size_t bytes);
int make_segment(struct segment **made, size_t bytes, int device);
void drop_segment(struct segment *segment);
int map_segment(void *at, size_t bytes, struct segment *segment);
int unmap_segments(void *at, size_t bytes);
#define FINE { return CUDA_SUCCESS; }

CUresult cuInit(unsigned flags) FINE
CUresult cuDriverGetVersion(int *v) { *v = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *d, int ordinal) { *d = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { *n = device_count(); return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { *v = card_attribute(a); return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int n, CUdevice d) { snprintf(name, n, "%s", CARD_NAME); return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) { memset(u, d + 1, sizeof *u); return CUDA_SUCCESS; }

/* A context is its device. */
static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)((device + 1) << 5); }
static int device_of(CUcontext c) { return (int)((uintptr_t)c >> 5) - 1; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = context_of(d); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { *flags = 0; *active = 1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { if (c) use_device(device_of(c)); return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = context_of(current_device()); return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = current_device(); return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) FINE
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 1 << 20; return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { int d = stream_device(s); *c = context_of(d < 0 ? current_device() : d); return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult e, const char **text) { *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused by the null GPU"; return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult e, const char **text) { *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return CUDA_SUCCESS; }

/* Kernels. Of a program's code (ELF) are read the sizes of each kernel's arguments, so that a launch can
   be refused whose pointers are another card's memory: a card would read there and fail, or not. */
enum { MOST_ARGUMENTS = 128 };
struct module { char *image; };
struct function { int arguments; unsigned short size[MOST_ARGUMENTS]; char name[200]; };

static void read_arguments(const char *image, struct function *f) {
  const Elf64_Ehdr *head = (const void *)image;
  if (!image || memcmp(head->e_ident, ELFMAG, SELFMAG)) return;
  const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
  const char *names = image + sections[head->e_shstrndx].sh_offset;
  char wanted[256];
  snprintf(wanted, sizeof wanted, ".nv.info.%s", f->name);
  for (int i = 0; i < head->e_shnum; i++) {
    if (strcmp(names + sections[i].sh_name, wanted)) continue;
    const unsigned char *at = (const void *)(image + sections[i].sh_offset), *end = at + sections[i].sh_size;
    while (at + 4 <= end) { /* format, attribute, then a value or the bytes that follow */
      unsigned short value;
      memcpy(&value, at + 2, 2);
      if (at[0] == 4 && at[1] == 0x17 && value >= 12) { /* an argument: index, ordinal, offset, size */
        unsigned short ordinal;
        unsigned last;
        memcpy(&ordinal, at + 8, 2);
        memcpy(&last, at + 12, 4);
        if (ordinal < MOST_ARGUMENTS) {
          f->size[ordinal] = last >> 18;
          if (ordinal >= f->arguments) f->arguments = ordinal + 1;
        }
      }
      at += 4 + (at[0] == 4 ? value : 0);
    }
  }
}
static char *copy_of(const char *image) {
  const Elf64_Ehdr *head = (const void *)image;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG)) return NULL;
  size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  const Elf64_Shdr *s = (const void *)(image + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++)
    if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > size) size = s[i].sh_offset + s[i].sh_size;
  return memcpy(malloc(size), image, size);
}
static CUresult loaded(CUmodule *m, char *image) {
  struct module *made = malloc(sizeof *made);
  made->image = image;
  *m = (CUmodule)made;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *m, const void *image) { return loaded(m, copy_of(image)); }
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *o, void **v) { return loaded(m, copy_of(image)); }
CUresult cuModuleLoad(CUmodule *m, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char *image = calloc(1, size + 1);
  size_t got = fread(image, 1, size, file);
  fclose(file);
  return got == (size_t)size ? loaded(m, image) : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleUnload(CUmodule m) { free(((struct module *)m)->image); free(m); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  struct function *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  read_arguments(((struct module *)m)->image, made);
  kernel_named(made, made->name);
  __atomic_fetch_add(&counters()->programs, 1, __ATOMIC_RELAXED);
  *f = (CUfunction)made;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *n, CUmodule m, const char *name) { static char room[4096]; *p = (CUdeviceptr)room; if (n) *n = sizeof room; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int value) {
  if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > SMEM_OPT_IN) { refused("more shared memory than a block may have", f); return CUDA_ERROR_INVALID_VALUE; }
  kernel_may_use(f, value > SMEM_DEFAULT ? value : SMEM_DEFAULT);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) FINE
CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) { *n = 1; return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) { *n = 2; return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType t, cuuint32_t rank, void *at, const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave i, CUtensorMapSwizzle s,
                                CUtensorMapL2promotion p, CUtensorMapFloatOOBfill o) FINE

static int of_other_device(const struct function *f, void **values) {
  for (int i = 0; values && i < f->arguments; i++) {
    if (f->size[i] != sizeof(void *)) continue;
    void *pointer;
    int device;
    memcpy(&pointer, values[i], sizeof pointer);
    if (kind_of(pointer, &device) == ON_DEVICE && device != current_device()) {
      char why[96];
      snprintf(why, sizeof why, "memory of device %d in a launch on device %d", device, current_device());
      return refused(why, f);
    }
  }
  return 0;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **values, void **extra) {
  unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  if (launched(f, grid, block, shared, s)) return CUDA_ERROR_INVALID_VALUE;
  return of_other_device((struct function *)f, values) ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **values, void **extra) {
  return cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream, values, extra);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **values) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, values, NULL);
}

/* Memory */
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute a, CUdeviceptr p) {
  int device;
  enum kind kind = kind_of((void *)p, &device);
  if (kind == NOWHERE) return CUDA_ERROR_INVALID_VALUE;
  if (a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)value = device;
  else if (a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(int *)value = kind == ON_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  else *(CUdeviceptr *)value = p;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *a, void **values, CUdeviceptr p) {
  for (unsigned i = 0; i < n; i++) cuPointerGetAttribute(values[i], a[i], p);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *n, CUdeviceptr p) { *base = p; *n = 1; return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags o) { *n = 2 << 20; return CUDA_SUCCESS; }
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags) { return reserve((void **)p, n) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }
CUresult cuMemAddressFree(CUdeviceptr p, size_t n) { return unreserve((void *)p, n) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p, unsigned long long flags) {
  return make_segment((struct segment **)h, n, p->location.id) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle h) { drop_segment((struct segment *)h); return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
  return map_segment((void *)p, n, (struct segment *)h) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t n) { return unmap_segments((void *)p, n) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t count) FINE

CUresult cuGetProcAddress_v2(const char *name, void **call, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *result) {
  char versioned[128];
  *call = dlsym(RTLD_DEFAULT, name);
  if (!*call) { snprintf(versioned, sizeof versioned, "%s_v2", name); *call = dlsym(RTLD_DEFAULT, versioned); }
  if (result) *result = *call ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *call ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
