// Pendulum in CUDA C++: the functions of pendulum.py.

__device__ State reset(const Key& key, const Params& p) {
    return {uniform(key, 0, -p.x_init, p.x_init), uniform(key, 1, -p.y_init, p.y_init)};
}

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float angle = wrap(s.theta), sin = sincos(s.theta).sin;
    const float torque = fminf(fmaxf(action[0], -p.max_torque), p.max_torque);
    const float cost = angle * angle + 0.1f * (s.theta_dot * s.theta_dot) + 0.001f * (torque * torque);

    const float theta_acc = 1.5f * p.g / p.length * sin + 3.0f / (p.mass * (p.length * p.length)) * torque;
    const float theta_dot = fminf(fmaxf(s.theta_dot + p.dt * theta_acc, -p.max_speed), p.max_speed);
    return {{s.theta + p.dt * theta_dot, theta_dot}, -cost, false};
}

__device__ Floats<3> observe(const State& s, const Params& p) {
    const auto [sin, cos] = sincos(s.theta);
    return {cos, sin, s.theta_dot};
}
