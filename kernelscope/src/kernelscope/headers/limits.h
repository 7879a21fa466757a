#pragma once
#include <cuda/std/climits>
#ifndef SIZE_MAX
#define SIZE_MAX ((size_t)-1)
#endif
