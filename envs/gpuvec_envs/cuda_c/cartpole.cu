// CartPole in CUDA C++: the functions of cartpole.py.

__device__ State reset(const Key& key, const Params& p) {
    return {
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    };
}

__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float total_mass = p.cart_mass + p.pole_mass;
    const float mass_ratio = p.pole_mass / total_mass;
    const float force_acc = p.force / total_mass;  // [m/s^2]
    const auto [sin, cos] = sincos(s.theta);

    // The acceleration of the cart if theta_acc were 0.
    const float base_acc =
        (action == 1 ? force_acc : -force_acc) + mass_ratio * p.half_length * (s.theta_dot * s.theta_dot) * sin;
    const float theta_acc = (p.gravity * sin - cos * base_acc) / (p.half_length * (4.0f / 3.0f - mass_ratio * (cos * cos)));
    const float x_acc = base_acc - mass_ratio * p.half_length * cos * theta_acc;

    s = {
        s.x + p.dt * s.x_dot,
        s.x_dot + p.dt * x_acc,
        s.theta + p.dt * s.theta_dot,
        s.theta_dot + p.dt * theta_acc,
    };
    const bool terminated = fabsf(s.x) > p.x_limit || fabsf(s.theta) > p.theta_limit;
    const float reward = p.sutton_barto_reward ? (terminated ? -1.0f : 0.0f) : 1.0f;
    return {s, reward, terminated};
}

__device__ Floats<4> observe(const State& s, const Params& p) { return {s.x, s.x_dot, s.theta, s.theta_dot}; }
