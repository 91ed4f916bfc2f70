// A driver that only tells what it is asked: each launch is a line on the standard output, with the
// entry point, the grid, the block, the shared memory, and the 64-bit words of all arguments. A
// function is its name. Five multiprocessors run two blocks each, or seven clusters in all.
#include "cuda.h"

#include <stdio.h>
#include <string.h>

static int count_of_arguments;
static int bytes_of[64];
static int shared_set;

void mock_arguments(int count, const int *bytes)
{
  count_of_arguments = count;
  memcpy(bytes_of, bytes, sizeof(int) * (size_t)count);
}

static CUresult loaded(CUmodule *module)
{
  *module = (CUmodule)(uintptr_t)1;
  shared_set = 0;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *file) { return (void)file, loaded(module); }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return (void)image, loaded(module); }
CUresult cuModuleUnload(CUmodule module) { return (void)module, CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
  // Python's strings do not outlive the call.
  static char names[4096][96];
  static int used;
  (void)module;
  strncpy(names[used], name, 95);
  *function = (CUfunction)(void *)names[used++];
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
  (void)function;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) shared_set = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return (void)context, CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 5 : 0;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int block, size_t shared)
{
  (void)function, (void)block;
  *count = (int)shared == shared_set ? 2 : 0;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config)
{
  (void)function;
  const CUlaunchAttribute *size = config->attrs;
  const int known = config->numAttrs == 1 && size->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
                    size->value.clusterDim.x == config->gridDimX && (int)config->sharedMemBytes == shared_set;
  *count = known ? 7 : 0;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
  memset(map, 0, sizeof *map);
  cuuint64_t *words = map->opaque;
  words[0] = (cuuint64_t)type | (cuuint64_t)rank << 8 | (cuuint64_t)swizzle << 16 | (cuuint64_t)promotion << 24 |
             (cuuint64_t)interleave << 32 | (cuuint64_t)fill << 40;
  words[1] = (cuuint64_t)(uintptr_t)address;
  for (unsigned i = 0; i < rank; ++i) words[2 + i] = sizes[i];
  for (unsigned i = 0; i + 1 < rank; ++i) words[7 + i] = strides[i];
  words[11] = box[0] | (cuuint64_t)box[1] << 32;
  for (unsigned i = 0; i < rank; ++i) words[12] += steps[i];
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **values, void **extra)
{
  (void)stream, (void)extra;
  printf("%s %u %u %u %u %u %u %u", (const char *)(void *)function, gx, gy, gz, bx, by, bz, shared);
  for (int i = 0; i < count_of_arguments; ++i) {
    for (int at = 0; at < bytes_of[i]; at += 8) {
      long long word;
      memcpy(&word, (const char *)values[i] + at, 8);
      printf(" %lld", word);
    }
  }
  printf("\n");
  fflush(stdout);
  return CUDA_SUCCESS;
}
