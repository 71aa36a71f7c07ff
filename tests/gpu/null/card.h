/* A GPU that computes nothing: what its parts share. See README.md beside this file. */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 8, SMEM_DEFAULT = 49152, SMEM_OPT_IN = 232448 /* an H100's, bytes a block */ };
#define CARD_NAME "NVIDIA H100 80GB HBM3"

/* One process's counters, in a file of NULL_GPU_COUNTERS where that names a folder: they outlive a
   kill. Order and sizes are read by counters.py. */
struct counters {
  uint64_t launches, bad, waits, up, down, used[MOST_DEVICES], peak[MOST_DEVICES];
  uint64_t devices; /* bit i: something was allocated, copied or launched there */
  uint64_t flops;   /* of matrix products */
  uint64_t programs; /* kernels that were loaded while the process ran */
  char first_bad[256];
};
struct counters *counters(void);

int device_count(void);
int current_device(void);
void use_device(int device); /* the current one; counted */
int card_attribute(int attribute);
size_t card_bytes(void);
size_t card_used(int device);

/* Launches. `stream` 0 is the current device's own; 0 is returned for a launch that a card takes. */
void kernel_named(const void *kernel, const char *name);
void kernel_may_use(const void *kernel, size_t shared);
int launched(const void *kernel, const unsigned grid[3], const unsigned block[3], size_t shared, const void *stream);
int refused(const char *why, const void *kernel);
void library_call(const char *name, const void *stream, double flops);
void *new_stream(void);
int stream_device(const void *stream);
void waited(void);

/* Memory: address space of this process, never a page until something is copied there. */
enum kind { NOWHERE = -1, ON_DEVICE, ON_HOST };
int take(void **pointer, size_t bytes, enum kind kind); /* 0, or 2: out of memory */
void give(void *pointer);
enum kind kind_of(const void *pointer, int *device);
