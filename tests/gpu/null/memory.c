/* Device memory: address space without pages. What is not written reads as zeros. */
#include "card.h"
#include <sys/mman.h>

enum { MOST = 1 << 17, COPIED = 64 << 20, COPIED_WITHIN = 64 << 10 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct part { char *at; size_t bytes; enum kind kind; int device; } parts[MOST];
static int count;

size_t card_bytes(void) {
  const char *said = getenv("NULL_GPU_GIB");
  return (size_t)((said ? atof(said) : 79.1) * (1ull << 30));
}
size_t card_used(int device) { return counters()->used[device]; }

static void counted(int device, int64_t more) {
  struct counters *own = counters();
  uint64_t used = __atomic_add_fetch(&own->used[device], more, __ATOMIC_RELAXED);
  if (used > own->peak[device]) own->peak[device] = used;
  own->devices |= 1ull << device;
}
static int remember(char *at, size_t bytes, enum kind kind, int device) {
  int i = 0;
  while (i < count && parts[i].at) i++;
  if (i == MOST) return 2;
  if (i == count) count++;
  parts[i] = (struct part){at, bytes, kind, device};
  return 0;
}

int take(void **pointer, size_t bytes, enum kind kind) {
  int device = current_device();
  *pointer = NULL;
  if (!bytes) return 0;
  if (kind == ON_DEVICE && card_used(device) + bytes > card_bytes()) return 2;
  char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 2;
  pthread_mutex_lock(&lock);
  int failed = remember(at, bytes, kind, device);
  pthread_mutex_unlock(&lock);
  if (failed) { munmap(at, bytes); return failed; }
  if (kind == ON_DEVICE) counted(device, bytes);
  *pointer = at;
  return 0;
}
static struct part *part_of(const void *pointer) {
  const char *at = pointer;
  for (int i = 0; i < count; i++)
    if (parts[i].at && at >= parts[i].at && at < parts[i].at + parts[i].bytes) return &parts[i];
  return NULL;
}
void give(void *pointer) {
  pthread_mutex_lock(&lock);
  struct part *found = pointer ? part_of(pointer) : NULL, gone = {0};
  if (found) { gone = *found; found->at = NULL; }
  pthread_mutex_unlock(&lock);
  if (!gone.at) return;
  munmap(gone.at, gone.bytes);
  if (gone.kind == ON_DEVICE) counted(gone.device, -(int64_t)gone.bytes);
}
enum kind kind_of(const void *pointer, int *device) {
  pthread_mutex_lock(&lock);
  struct part *found = part_of(pointer);
  enum kind kind = found ? found->kind : NOWHERE;
  if (device) *device = found ? found->device : 0;
  pthread_mutex_unlock(&lock);
  return kind;
}

/* Copies from and to the host are made (the first 64 MiB of each), so that what a program sends comes
   back; within the card only small ones, such as counters. Returns whether the host waits. */
int copied(void *to, const void *from, size_t bytes) {
  enum kind source = kind_of(from, NULL), target = kind_of(to, NULL);
  size_t most = COPIED;
  if (source == ON_DEVICE && target == ON_DEVICE) most = COPIED_WITHIN;
  else if (target == ON_DEVICE) __atomic_fetch_add(&counters()->up, 1, __ATOMIC_RELAXED);
  else if (source == ON_DEVICE) __atomic_fetch_add(&counters()->down, 1, __ATOMIC_RELAXED);
  if (source != ON_DEVICE || target != ON_DEVICE || bytes <= most) memmove(to, from, bytes < most ? bytes : most);
  return source == ON_DEVICE && target == NOWHERE;
}

/* Virtual memory of the driver, which torch's expandable segments are made of. */
struct segment { size_t bytes; int device; };
int reserve(void **at, size_t bytes) {
  *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *at == MAP_FAILED ? 2 : 0;
}
int unreserve(void *at, size_t bytes) { return munmap(at, bytes) ? 1 : 0; }
int make_segment(struct segment **made, size_t bytes, int device) {
  if (card_used(device) + bytes > card_bytes()) return 2;
  *made = malloc(sizeof **made);
  **made = (struct segment){bytes, device};
  counted(device, bytes);
  return 0;
}
void drop_segment(struct segment *segment) {
  counted(segment->device, -(int64_t)segment->bytes);
  free(segment);
}
int map_segment(void *at, size_t bytes, struct segment *segment) {
  if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) return 1;
  pthread_mutex_lock(&lock);
  int failed = remember(at, bytes, ON_DEVICE, segment->device);
  pthread_mutex_unlock(&lock);
  return failed;
}
int unmap_segments(void *at, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count; i++)
    if (parts[i].at >= (char *)at && parts[i].at < (char *)at + bytes) parts[i].at = NULL;
  pthread_mutex_unlock(&lock);
  madvise(at, bytes, MADV_DONTNEED);
  return mprotect(at, bytes, PROT_NONE) ? 1 : 0;
}
