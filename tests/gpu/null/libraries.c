/* cuBLAS and NCCL where their calls give something back; build.py makes the rest, which only counts. */
#include "card.h"

struct handle { void *stream; };
int cublasCreate_v2(void **h) { *h = calloc(1, sizeof(struct handle)); return 0; }
int cublasDestroy_v2(void *h) { free(h); return 0; }
int cublasSetStream_v2(struct handle *h, void *stream) { h->stream = stream; return 0; }
int cublasGetMathMode(void *h, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *h, int *mode) { *mode = 0; return 0; }
static int counted(const char *name, const void *stream, double flops) {
  library_call(name, stream, flops);
  return 0;
}
/* One row or column is a sum, which a product takes long for. */
#define product(name, stream, m, n, k, batch) \
  counted((m) == 1 || (n) == 1 ? name " of one row" : name, stream, 2.0 * (m) * (n) * (k) * (batch))
int cublasGemmEx(struct handle *h, int ta, int tb, int m, int n, int k) { return product("cublasGemmEx", h->stream, m, n, k, 1); }
int cublasSgemm_v2(struct handle *h, int ta, int tb, int m, int n, int k) { return product("cublasSgemm", h->stream, m, n, k, 1); }
int cublasGemmStridedBatchedEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa,
                               const void *b, int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch) {
  return product("cublasGemmStridedBatchedEx", h->stream, m, n, k, batch);
}
int cublasSgemmStridedBatched(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa,
                              const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch) {
  return product("cublasSgemmStridedBatched", h->stream, m, n, k, batch);
}

/* cuBLASLt: attributes by their numbers in cublasLt.h. */
enum { ROWS = 2, COLUMNS = 3, BATCH = 5, TRANSPOSES_A = 3 };
struct layout { uint64_t rows, columns; int batch; };
struct operation { int transposes_a; };
int cublasLtCreate(void **h) { return cublasCreate_v2(h); }
int cublasLtMatrixLayoutCreate(struct layout **l, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  *l = malloc(sizeof **l);
  **l = (struct layout){rows, columns, 1};
  return 0;
}
int cublasLtMatrixLayoutDestroy(struct layout *l) { free(l); return 0; }
int cublasLtMatrixLayoutSetAttribute(struct layout *l, int what, const void *value, size_t size) {
  if (what == ROWS) memcpy(&l->rows, value, sizeof l->rows);
  if (what == COLUMNS) memcpy(&l->columns, value, sizeof l->columns);
  if (what == BATCH) memcpy(&l->batch, value, sizeof l->batch);
  return 0;
}
int cublasLtMatmulDescCreate(struct operation **d, int compute, int scale) { *d = calloc(1, sizeof **d); return 0; }
int cublasLtMatmulDescDestroy(struct operation *d) { free(d); return 0; }
int cublasLtMatmulDescSetAttribute(struct operation *d, int what, const void *value, size_t size) {
  if (what == TRANSPOSES_A) memcpy(&d->transposes_a, value, sizeof d->transposes_a);
  return 0;
}
int cublasLtMatmulPreferenceCreate(void **p) { *p = malloc(8); return 0; }
int cublasLtMatmulPreferenceDestroy(void *p) { free(p); return 0; }
struct found { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *out, void *p, int asked, struct found *found, int *count) {
  memset(found, 0, sizeof *found);
  found->waves = 1;
  *count = 1;
  return 0;
}
int cublasLtMatmul(void *h, struct operation *d, const void *alpha, const void *a, struct layout *a_, const void *b, struct layout *b_, const void *beta,
                   const void *c, struct layout *c_, void *out, struct layout *out_, const void *algorithm, void *room, size_t bytes, void *stream) {
  uint64_t inner = d->transposes_a ? a_->rows : a_->columns;
  return product("cublasLtMatmul", stream, out_->rows, out_->columns, inner, out_->batch);
}

/* NCCL: groups form, nothing is sent. */
struct group { int ranks, rank; };
struct id { char bytes[128]; };
int ncclGetVersion(int *v) { *v = 22800; return 0; }
int ncclGetUniqueId(struct id *id) { memset(id, 1, sizeof *id); return 0; }
int ncclCommInitRank(struct group **g, int ranks, struct id id, int rank) {
  *g = malloc(sizeof **g);
  **g = (struct group){ranks, rank};
  return 0;
}
int ncclCommInitRankConfig(struct group **g, int ranks, struct id id, int rank, void *config) { return ncclCommInitRank(g, ranks, id, rank); }
int ncclCommCount(struct group *g, int *ranks) { *ranks = g->ranks; return 0; }
int ncclCommUserRank(struct group *g, int *rank) { *rank = g->rank; return 0; }
int ncclCommGetAsyncError(struct group *g, int *error) { *error = 0; return 0; }
const char *ncclGetErrorString(int error) { return error ? "refused by the null GPU" : "no error"; }
const char *ncclGetLastError(struct group *g) { return ""; }
