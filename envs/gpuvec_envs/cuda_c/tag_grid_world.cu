// TagGridWorld in CUDA C++: the functions of tag_grid_world.py.

constexpr int TAGGER = 0, RUNNER = 1;  // roles

__device__ void reset(int i, State& s, const Key& key, const Params& p) {
    const int side = p.grid_length + 1, runner = s.agents_by_role[p.num_taggers];
    int cell = randint(key, runner, 0, side * side);
    const int mine = i != runner ? i : AGENTS;  // the runner's is not used, and nobody draws a number twice
    const int other = randint(key, mine, 0, side * side - 1);
    if (i != runner) cell = other >= cell ? other + 1 : other;  // one of the cells without the runner's
    s.x[i] = (unsigned)cell % (unsigned)side;
    s.y[i] = (unsigned)cell / (unsigned)side;
    s.hit_wall[i] = false;
}

__device__ void move(int i, State& s, Action action, const Key& key, const Params& p) {
    const int x = s.x[i] + (action == 1 ? 1 : action == 2 ? -1 : 0);
    const int y = s.y[i] + (action == 3 ? 1 : action == 4 ? -1 : 0);
    const int column = min(max(x, 0), p.grid_length), row = min(max(y, 0), p.grid_length);
    s.x[i] = column;
    s.y[i] = row;
    s.hit_wall[i] = x != column || y != row;
}

// Whether agent i is a tagger in the runner's cell.
__device__ bool tags(int i, const State& s, const Params& p) {
    const int runner = s.agents_by_role[p.num_taggers];
    return i != runner && s.x[i] == s.x[runner] && s.y[i] == s.y[runner];
}

__device__ float reward(int i, const State& s, Time t, const Params& p) {
    const float wall = s.hit_wall[i] ? p.wall_hit_penalty : 0.0f;
    if (s.role[i] == TAGGER) return (s.tagged ? p.tag_reward_for_tagger : -p.step_cost_for_tagger) - wall;
    return (s.tagged ? -p.tag_penalty_for_runner : p.step_cost_for_tagger) - wall;
}

__device__ bool terminated(int i, const State& s, const Params& p) { return s.tagged; }

__device__ __forceinline__ float kind(int i, const State& s) { return s.role[i] == RUNNER ? 1.0f : 0.0f; }

__device__ Floats<1> time(int i, const State& s, Time t, const Params& p) { return {fraction(t.step, t.limit)}; }

__device__ Floats<4> other_features(int i, int j, const State& s, Time t, const Params& p) {
    return {fraction(s.x[j], p.grid_length), fraction(s.y[j], p.grid_length), kind(j, s), i == j ? 1.0f : 0.0f};
}

// How far tagger i is from the runner, squared.
__device__ float from_runner(int i, const State& s, const Params& p) {
    const int j = s.agents_by_role[p.num_taggers];
    if (i == j) return INFINITY;
    const float x = (float)s.x[i] - (float)s.x[j], y = (float)s.y[i] - (float)s.y[j];
    return x * x + y * y;
}

// A partial observation.
__device__ Floats<6> observe_one(int i, const State& s, Time t, const Params& p) {
    const int length = p.grid_length;
    const int j = s.role[i] == RUNNER ? s.nearest_tagger : s.agents_by_role[p.num_taggers];
    return {
        fraction(s.x[i], length),
        fraction(s.y[i], length),
        fraction(s.x[j], length),
        fraction(s.y[j], length),
        kind(i, s),
        fraction(t.step, t.limit),
    };
}
