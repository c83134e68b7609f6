// MyGame in CUDA C++: the functions of env.py, for make_vec(..., backend="cuda-c").
//
// A function that is missing here stays Python. `gpuvec check my_game:my_game/MyGame-v0` compares the two.

__device__ State reset(const Key& key, const Params& p) { return {0.0f, 0.0f, uniform(key, 0, 1.0f, p.far)}; }

__device__ float clip(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float engine = action == 2 ? p.thrust : action == 0 ? -p.thrust : 0.0f;
    const float pull = p.current + p.gust * uniform(key, 0, -1.0f, 1.0f);
    const float v = clip(s.v + p.dt * (engine + pull - p.drag * s.v), -p.top, p.top);
    const float x = clip(s.x + p.dt * v, -p.far, 2.0f * p.far);
    const bool there = fabsf(s.buoy - x) < p.reach && fabsf(v) < p.reach;
    const float cost = action == 1 ? 0.01f : 0.05f;
    return {{x, v, s.buoy}, (there ? 1.0f : 0.0f) - cost, there};
}

__device__ Floats<2> observe(const State& s, const Params& p) { return {s.buoy - s.x, s.v}; }
