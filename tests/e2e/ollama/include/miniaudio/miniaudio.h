/* What mtmd-helper.cpp names of miniaudio, whose file the published Go module lacks: every call fails, and no audio is
 * read. */
#pragma once
#include <cstddef>
typedef int ma_result;
typedef unsigned long long ma_uint64;
struct ma_decoder { int unused; };
struct ma_decoder_config { int unused; };
enum { MA_SUCCESS = 0, MA_ERROR = -1, ma_format_f32 = 5 };
static inline ma_decoder_config ma_decoder_config_init(int, unsigned, unsigned) { return {0}; }
static inline ma_result ma_decoder_init_memory(const void *, size_t, const ma_decoder_config *, ma_decoder *) { return MA_ERROR; }
static inline ma_result ma_decoder_get_length_in_pcm_frames(ma_decoder *, ma_uint64 *) { return MA_ERROR; }
static inline ma_result ma_decoder_read_pcm_frames(ma_decoder *, void *, ma_uint64, ma_uint64 *) { return MA_ERROR; }
static inline ma_result ma_decoder_uninit(ma_decoder *) { return MA_ERROR; }
