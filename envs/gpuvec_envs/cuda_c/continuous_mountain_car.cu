// MountainCarContinuous in CUDA C++: the functions of continuous_mountain_car.py.

__device__ State reset(const Key& key, const Params& p) { return {uniform(key, 0, p.low, p.high), 0.0f}; }

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float cos = sincos(3.0f * s.x).cos;
    const float force = p.power * fminf(fmaxf(action[0], -p.max_action), p.max_action);
    float v = fminf(fmaxf(s.v + force - p.gravity * cos, -p.max_speed), p.max_speed);
    const float x = fminf(fmaxf(s.x + v, p.min_position), p.max_position);
    if (x == p.min_position && v < 0.0f) v = 0.0f;
    const bool terminated = x >= p.goal_position && v >= p.goal_velocity;
    return {{x, v}, (terminated ? 100.0f : 0.0f) - 0.1f * (action[0] * action[0]), terminated};
}

__device__ Floats<2> observe(const State& s, const Params& p) { return {s.x, s.v}; }
