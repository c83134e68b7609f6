// The functions of env.py in CUDA C++, which make_vec(..., backend="cuda-c") uses.
//
// A function that is missing here is taken from env.py. `gpuvec check my_game:my_game/MyGame-v0` compares both.

__device__ State reset(const Key& key, const Params& p) { return {0.0f, 0.0f, uniform(key, 0, 1.0f, p.max_distance)}; }

__device__ float clip(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float engine = action == 2 ? p.thrust : action == 0 ? -p.thrust : 0.0f;
    const float water = p.current + p.gust * uniform(key, 0, -1.0f, 1.0f);
    const float speed = clip(s.speed + p.dt * (engine + water - p.drag * s.speed), -p.max_speed, p.max_speed);
    const float position = clip(s.position + p.dt * speed, -p.max_distance, 2.0f * p.max_distance);
    const bool has_stopped = fabsf(s.buoy - position) < p.tolerance && fabsf(speed) < p.tolerance;
    const float cost = action == 1 ? 0.01f : 0.05f;
    return {{position, speed, s.buoy}, (has_stopped ? 1.0f : 0.0f) - cost, has_stopped};
}

__device__ Floats<2> observe(const State& s, const Params& p) { return {s.buoy - s.position, s.speed}; }
