#pragma once
// size_t, ptrdiff_t and NULL are built into the compiler.
