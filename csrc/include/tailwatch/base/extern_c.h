/* C linkage of declarations that C++ includes. */
#pragma once

#ifdef __cplusplus
#define TW_BEGIN_C extern "C" {
#define TW_END_C }
#else
#define TW_BEGIN_C
#define TW_END_C
#endif
