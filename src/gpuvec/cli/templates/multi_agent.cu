// MyGame in CUDA C++: functions of env.py, for make_vec(..., backend="cuda-c").
//
// A function that is missing here stays Python. `gpuvec check my_game:my_game/MyGame-v0` compares the two.

__device__ void walk(int i, State& s, Action action, const Key& key, const Params& p) {
    const float x = s.x[i] + (action == 1 ? p.pace : action == 2 ? -p.pace : 0.0f);
    const float y = s.y[i] + (action == 3 ? p.pace : action == 4 ? -p.pace : 0.0f);
    s.x[i] = fminf(fmaxf(x, 0.0f), p.side);
    s.y[i] = fminf(fmaxf(y, 0.0f), p.side);
}

__device__ float distance(int i, int j, const State& s, const Params& p) {
    const float x = s.x[i] - s.x[j], y = s.y[i] - s.y[j];
    return i == j ? INFINITY : x * x + y * y;
}

__device__ bool in_company(int i, const State& s, const Params& p) {
    float least = INFINITY;
    for (int j = 0; j < AGENTS; j++) least = fminf(least, distance(i, j, s, p));
    return least < p.reach * p.reach;
}

__device__ Floats<2> other_features(int i, int slot, const State& s, Time t, const Params& p) {
    const int j = s.nearest[i][slot];
    if (j < 0) return {};
    return {(s.x[j] - s.x[i]) / p.side, (s.y[j] - s.y[i]) / p.side};
}
