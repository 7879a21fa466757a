// Data: a filter of keys, letters of a text, the median of frames, bytes for a compressor.

// Whether a xor filter of three segments of 8-bit fingerprints may hold a key of 64 bits. A thread
// takes a key.
extern "C" __global__ void xor_filter_contains(
    const unsigned long long* __restrict__ key, const unsigned char* __restrict__ fingerprint,
    unsigned char* __restrict__ found, int n, int segment)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long h = key[i];
    h ^= h >> 33;
    h *= 0xFF51AFD7ED558CCDULL;
    h ^= h >> 33;
    h *= 0xC4CEB9FE1A85EC53ULL;
    h ^= h >> 33;
    const unsigned p = __umulhi((unsigned)h, segment);
    const unsigned q = __umulhi((unsigned)(h << 21 | h >> 43), segment) + segment;
    const unsigned r = __umulhi((unsigned)(h << 42 | h >> 22), segment) + 2 * segment;
    const unsigned char own = (unsigned char)(h ^ h >> 32);
    found[i] = own == (fingerprint[p] ^ fingerprint[q] ^ fingerprint[r]);
}

__device__ __forceinline__ unsigned lower_4(unsigned text)
{
    const unsigned low = text & 0x7F7F7F7F;
    const unsigned upper = ~text & (low + 0x3F3F3F3F ^ low + 0x25252525) & 0x80808080;
    return text | upper >> 2;
}

// A text in small letters, other bytes as they are. A thread takes 16 bytes.
extern "C" __global__ void ascii_lower_16(
    const uint4* __restrict__ text, uint4* __restrict__ lower, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint4 v = text[i];
    lower[i] = make_uint4(lower_4(v.x), lower_4(v.y), lower_4(v.z), lower_4(v.w));
}

// The median of 15 frames at each pixel, as a background. A thread takes a pixel, its values in
// registers, the smallest eight of them in order.
extern "C" __global__ void median_of_15_frames(
    const float* __restrict__ frame, float* __restrict__ median, int pixels)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    float v[15];
#pragma unroll
    for (int j = 0; j < 15; ++j) v[j] = frame[(size_t)j * pixels + i];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int l = j + 1; l < 15; ++l) {
            const float less = fminf(v[j], v[l]);
            v[l] = fmaxf(v[j], v[l]);
            v[j] = less;
        }
    median[i] = v[7];
}

// Blosc's shuffle: all first bytes of words of 4, then all second ones, and so on. A thread takes
// four words.
extern "C" __global__ void shuffle_bytes_4(
    const uint4* __restrict__ word, unsigned* __restrict__ plane, int quads)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    const uint4 v = word[i];
    const unsigned a = __byte_perm(v.x, v.y, 0x5140), b = __byte_perm(v.z, v.w, 0x5140);
    const unsigned c = __byte_perm(v.x, v.y, 0x7362), d = __byte_perm(v.z, v.w, 0x7362);
    plane[i] = __byte_perm(a, b, 0x5410);
    plane[(size_t)quads + i] = __byte_perm(a, b, 0x7632);
    plane[(size_t)quads * 2 + i] = __byte_perm(c, d, 0x5410);
    plane[(size_t)quads * 3 + i] = __byte_perm(c, d, 0x7632);
}
