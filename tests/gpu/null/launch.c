/* Launches: counted by name, and refused where an H100 would refuse them. */
#include "card.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counters *mine, without_a_file;
static __thread int device;

static void forget(void) { mine = NULL; }

struct counters *counters(void) {
  if (mine) return mine;
  pthread_mutex_lock(&lock);
  static int once;
  if (!once++) pthread_atfork(NULL, NULL, forget); /* a fork counts for itself */
  if (!mine) {
    struct counters *found = &without_a_file;
    memset(found, 0, sizeof *found);
    const char *folder = getenv("NULL_GPU_COUNTERS");
    if (folder) {
      char path[4096];
      snprintf(path, sizeof path, "%s/%d.counters", folder, getpid());
      int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (file >= 0 && !ftruncate(file, sizeof *found)) {
        void *at = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) found = at;
      }
      if (file >= 0) close(file);
    }
    mine = found;
  }
  pthread_mutex_unlock(&lock);
  return mine;
}

static void add(uint64_t *counter, uint64_t more) { __atomic_fetch_add(counter, more, __ATOMIC_RELAXED); }

int device_count(void) {
  const char *said = getenv("NULL_GPU_DEVICES"), *shown = getenv("CUDA_VISIBLE_DEVICES");
  int count = said ? atoi(said) : 1, visible = 0;
  if (count > MOST_DEVICES) count = MOST_DEVICES;
  if (!shown) return count;
  while (*shown) { /* a number of a card that is not there ends the list, as the driver has it */
    char *end;
    long number = strtol(shown, &end, 10);
    if (end == shown || number < 0 || number >= count) break;
    visible++;
    shown = *end == ',' ? end + 1 : end;
  }
  return visible;
}
int current_device(void) { return device; }
void use_device(int wanted) { device = wanted; }

/* Names, launches and the most dynamic shared memory of each kernel. */
enum { SLOTS = 1 << 18 };
static struct kernel { const void *key; const char *name; uint64_t count; size_t shared; } kernels[SLOTS];

static struct kernel *slot(const void *key) {
  uint64_t hash = ((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15ull;
  unsigned at = hash >> 46;
  while (kernels[at].key && kernels[at].key != key) at = (at + 1) % SLOTS;
  if (!kernels[at].key) kernels[at] = (struct kernel){key, "?", 0, SMEM_DEFAULT};
  return &kernels[at];
}
void kernel_named(const void *key, const char *name) {
  pthread_mutex_lock(&lock);
  slot(key)->name = name;
  pthread_mutex_unlock(&lock);
}
void kernel_may_use(const void *key, size_t shared) {
  pthread_mutex_lock(&lock);
  slot(key)->shared = shared;
  pthread_mutex_unlock(&lock);
}

static int refused_(const char *why, const char *name) {
  struct counters *own = counters();
  if (!__atomic_fetch_add(&own->bad, 1, __ATOMIC_RELAXED))
    snprintf(own->first_bad, sizeof own->first_bad, "%.150s: %s", name, why);
  if (getenv("NULL_GPU_VERBOSE")) fprintf(stderr, "null GPU: %s: %s\n", name, why);
  return 9; /* cudaErrorInvalidConfiguration */
}
int refused(const char *why, const void *key) {
  pthread_mutex_lock(&lock);
  const char *name = slot(key)->name;
  pthread_mutex_unlock(&lock);
  return refused_(why, name);
}

static int on_other_device(const char *name, const void *stream) {
  int at = stream_device(stream);
  if (at < 0 || at == device) return 0;
  char why[96];
  snprintf(why, sizeof why, "a stream of device %d, while device %d is the current one", at, device);
  return refused_(why, name);
}

int launched(const void *key, const unsigned g[3], const unsigned b[3], size_t shared, const void *stream) {
  struct counters *own = counters();
  pthread_mutex_lock(&lock);
  struct kernel *found = slot(key);
  found->count++;
  const char *name = found->name;
  size_t allowed = found->shared;
  pthread_mutex_unlock(&lock);
  add(&own->launches, 1);
  __atomic_fetch_or(&own->devices, 1ull << device, __ATOMIC_RELAXED);
  uint64_t threads = (uint64_t)b[0] * b[1] * b[2], blocks = (uint64_t)g[0] * g[1] * g[2];
  char why[160] = "";
  if (!blocks || !threads || g[0] > 2147483647u || g[1] > 65535 || g[2] > 65535)
    snprintf(why, sizeof why, "a grid of %u x %u x %u blocks", g[0], g[1], g[2]);
  else if (threads > 1024 || b[2] > 64)
    snprintf(why, sizeof why, "blocks of %u x %u x %u threads", b[0], b[1], b[2]);
  else if (shared > allowed)
    snprintf(why, sizeof why, "%zu bytes of shared memory, allowed are %zu", shared, allowed);
  return *why ? refused_(why, name) : on_other_device(name, stream);
}

void library_call(const char *name, const void *stream, double flops) {
  struct counters *own = counters();
  pthread_mutex_lock(&lock);
  struct kernel *found = slot(name);
  found->name = name;
  found->count++;
  pthread_mutex_unlock(&lock);
  add(&own->launches, 1);
  add(&own->flops, (uint64_t)flops);
  __atomic_fetch_or(&own->devices, 1ull << device, __ATOMIC_RELAXED);
  on_other_device(name, stream);
}

void waited(void) { add(&counters()->waits, 1); }

/* A stream is its device and a number. 0, 1 and 2 are CUDA's names of the current device's own. */
void *new_stream(void) {
  static uintptr_t number;
  return (void *)(((uintptr_t)device + 1) << 32 | (__atomic_add_fetch(&number, 1, __ATOMIC_RELAXED) << 4));
}
int stream_device(const void *stream) { return (uintptr_t)stream <= 2 ? -1 : (int)((uintptr_t)stream >> 32) - 1; }

/* For figures inside a process, by ctypes. */
void null_gpu_reset(void) {
  struct counters *own = counters();
  pthread_mutex_lock(&lock);
  for (int i = 0; i < SLOTS; i++) kernels[i].count = 0;
  own->launches = own->waits = own->up = own->down = own->flops = 0;
  memcpy(own->peak, own->used, sizeof own->peak);
  pthread_mutex_unlock(&lock);
}
struct counters *null_gpu_counters(void) { return counters(); }
int null_gpu_dump(const char *path) {
  FILE *out = fopen(path, "w");
  if (!out) return 1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < SLOTS; i++)
    if (kernels[i].count) fprintf(out, "%lu\t%s\n", kernels[i].count, kernels[i].name);
  pthread_mutex_unlock(&lock);
  return fclose(out);
}
