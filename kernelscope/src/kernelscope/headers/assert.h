#pragma once
// assert() is built into the compiler; NDEBUG switches it off.
#ifdef NDEBUG
#undef assert
#define assert(condition) ((void)0)
#endif
