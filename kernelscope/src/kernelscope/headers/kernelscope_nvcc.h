#pragma once
// What nvcc declares before the first line of a source.
#include <math.h>
#include <float.h>
#include <limits.h>
#include <cmath>
#include <cstdint>
#include <algorithm>
#include <iosfwd>
