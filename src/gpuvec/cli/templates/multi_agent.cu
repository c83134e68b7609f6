// Functions of env.py in CUDA C++, which make_vec(..., backend="cuda-c") uses.
//
// A function that is missing here is taken from env.py. `gpuvec check my_game:my_game/MyGame-v0` compares both.

__device__ void walk(int i, State& s, Action action, const Key& key, const Params& p) {
    const float x = s.x[i] + (action == 1 ? p.stride : action == 2 ? -p.stride : 0.0f);
    const float y = s.y[i] + (action == 3 ? p.stride : action == 4 ? -p.stride : 0.0f);
    s.x[i] = fminf(fmaxf(x, 0.0f), p.side_length);
    s.y[i] = fminf(fmaxf(y, 0.0f), p.side_length);
}

__device__ float squared_distance(int i, int j, const State& s, const Params& p) {
    const float x = s.x[i] - s.x[j], y = s.y[i] - s.y[j];
    return i == j ? INFINITY : x * x + y * y;
}

__device__ bool has_met(int i, const State& s, const Params& p) {
    float minimum = INFINITY;
    for (int j = 0; j < AGENTS; j++) minimum = fminf(minimum, squared_distance(i, j, s, p));
    return minimum < p.meeting_distance * p.meeting_distance;
}

__device__ Floats<2> other_features(int i, int slot, const State& s, Time t, const Params& p) {
    const int j = s.nearest[i][slot];
    if (j < 0) return {};
    return {(s.x[j] - s.x[i]) / p.side_length, (s.y[j] - s.y[i]) / p.side_length};
}
