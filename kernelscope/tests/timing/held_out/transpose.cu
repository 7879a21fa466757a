#define TILE 32

extern "C" __global__ void transpose_read_rows(const float* x, float* y, int rows, int columns)
{
    const int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) y[(size_t)c * rows + r] = x[(size_t)r * columns + c];
}

extern "C" __global__ void transpose_write_rows(const float* x, float* y, int rows, int columns)
{
    const int r = blockIdx.x * TILE + threadIdx.x, c = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) y[(size_t)c * rows + r] = x[(size_t)r * columns + c];
}

template <int PAD>
__device__ void transpose_tile(const float* x, float* y, int rows, int columns)
{
    __shared__ float tile[TILE][TILE + PAD];
    int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += blockDim.y)
        if (r + j < rows && c < columns)
            tile[threadIdx.y + j][threadIdx.x] = x[(size_t)(r + j) * columns + c];
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x;
    r = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += blockDim.y)
        if (c < rows && r + j < columns)
            y[(size_t)(r + j) * rows + c] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_conflicts(const float* x, float* y, int rows, int columns)
{
    transpose_tile<0>(x, y, rows, columns);
}

extern "C" __global__ void transpose_padded(const float* x, float* y, int rows, int columns)
{
    transpose_tile<1>(x, y, rows, columns);
}
