#pragma once
// Declarations for the host only: a kernel uses none of them.
