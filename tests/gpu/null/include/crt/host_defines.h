/* The macros that CUDA's headers take from its compiler's package, for a C compiler alone. */
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __inline_hint__
#endif
