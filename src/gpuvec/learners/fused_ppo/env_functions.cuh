// The functions of an environment, which are compiled from its Python and linked with a kernel.
#pragma once
#include "action_draws.cuh"

extern "C" __device__ int env_load(const u64* batch, i64 e, u32* start, u32* rng_stream, float* float_fields, int* int_fields);
extern "C" __device__ int env_observe(const u64* batch, i64 e, const float* float_fields, const int* int_fields, float* row);
// Returns 1 if the episode terminated, 2 if it was truncated, 3 for both, else 0.
extern "C" __device__ int env_step(const u64* batch, i64 e, i64 at, u32 clock, u32* start, const u32* rng_stream,
    float* float_fields, int* int_fields, const Component* action, float* row, float* reward);
extern "C" __device__ int env_store(const u64* batch, i64 e, u32 start, const float* float_fields, const int* int_fields);
