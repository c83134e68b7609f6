// The functions of meadow_env.py in CUDA C++.

// Returns whether sheep i is in a cell.
__device__ bool is_in(int i, int row, int column, const State& s) { return s.y[i] == row && s.x[i] == column; }

__device__ void reset_sheep(int i, State& s, const Key& key, const Params& p) {
    s.y[i] = randint(key, 2 * i, 0, p.height);
    s.x[i] = randint(key, 2 * i + 1, 0, p.width);
    s.eaten[i] = 0.0f;
    for (int k = 0; k < p.num_marks; k++) s.visited[i][k] = false;
}

__device__ void reset_cell(int row, int column, State& s, const Key& key, const Params& p) {
    s.grass[row][column] = randint(key, row * CELLS_COLUMNS + column, 0, 4);
    s.layers[row][column][0] = s.layers[row][column][1] = 0;
}

__device__ void reset_pair(int i, int j, State& s, const Key& key, const Params& p) { s.gifts[i][j] = 0.0f; }

__device__ void reset_rain(State& s, const Key& key, const Params& p) {
    for (int k = 0; k < RAIN_SIZE; k++) s.rain[k] = uniform(key, k, 0.0f, 1.0f);
}

__device__ Tuple<float, int, bool> first_weather(const State& s, const Key& key, const Params& p) {
    return {10.0f + s.rain[0], 0, false};
}

__device__ void move(int i, State& s, Action action, const Key& key, const Params& p) {
    s.x[i] = (s.x[i] + (action == 1)) % p.width;
    s.y[i] = (s.y[i] + (action == 2)) % p.height;
    if (s.x[i] < p.num_marks) s.visited[i][s.x[i]] = true;
}

__device__ void give(int i, int j, State& s, Action action, const Key& key, const Params& p) {
    s.gifts[i][j] = i != j ? action : randint(key, i, 0, 3);
}

__device__ void graze(int row, int column, State& s, const Key& key, const Params& p) {
    int visitors = 0;
    for (int i = 0; i < AGENTS; i++) visitors += is_in(i, row, column, s);
    if (visitors > 0) {
        s.grass[row][column] = max(s.grass[row][column] - visitors, 0);
        s.layers[row][column][0]++;
    } else if (s.grass[row][column] < 3 && randint(key, row * CELLS_COLUMNS + column, 0, 4) == 0) {
        s.grass[row][column]++;
        s.layers[row][column][1]++;
    }
}

__device__ void eat(int i, State& s, Action action, const Key& key, const Params& p) { s.eaten[i] += s.layers[s.y[i]][s.x[i]][0]; }

__device__ void fall(State& s, const Key& key, const Params& p) {
    s.rain[2] = s.rain[1];
    s.rain[1] = s.rain[0];
    s.rain[0] = uniform(key, 0, 0.0f, 1.0f);
}

__device__ Tuple<float, int, bool> weather(const State& s, const Key& key, const Params& p) {
    return {s.temperature + p.warming * s.rain[0], s.days + 1, s.rain[0] + s.rain[1] + s.rain[2] < 1.0f};
}

__device__ int grass_of(int row, int column, const State& s, const Params& p) { return s.grass[row][column]; }

__device__ bool is_bare(int row, int column, const State& s, const Params& p) { return s.grass[row][column] == 0; }

__device__ float less_grass(int row, int column, const State& s, const Params& p) { return -(float)s.grass[row][column]; }

__device__ float share_eaten(int i, const State& s, const Params& p) { return s.eaten[i] / (float)AGENTS; }

__device__ float eaten_by(int i, const State& s, const Params& p) { return s.eaten[i]; }

// A sheep may not leave the last column to the right, nor the first row downwards on a dry day.
__device__ bool allowed(int i, Action action, const State& s, const Params& p) {
    return (action != 1 || s.x[i] < p.width - 1) && (action != 2 || !s.is_dry || s.y[i] > 0);
}

__device__ Floats<5> metrics(const State& s, const Params& p) {
    return {s.total_grass, s.rain[0], s.rain[0], s.total_grass, s.temperature};
}

__device__ float reward(int i, const State& s, Time t, const Params& p) {
    float received = 0.0f;
    for (int j = 0; j < AGENTS; j++) received += s.gifts[j][i];
    return received + s.total_grass * 0.125f + s.mean_eaten;
}

__device__ bool terminated(int i, const State& s, const Params& p) { return s.total_grass < 6 || (s.is_dry && s.days > 12); }

__device__ Floats<8> features(int i, const State& s, Time t, const Params& p) {
    const int here = s.grass[s.y[i]][s.x[i]], marks = s.visited[i][0] + s.visited[i][1];
    return {here, marks, s.temperature, s.rain[2], s.mean_eaten, s.least_eaten, s.greenest, s.most_grass};
}

// The grass, the number of sheep, and the sheep itself.
__device__ Pixel pixel(int i, int row, int column, const State& s, Time t, const Params& p) {
    int count = 0;
    for (int j = 0; j < AGENTS; j++) count += is_in(j, row, column, s);
    return {60 * s.grass[row][column], count, is_in(i, row, column, s) ? 200 : t.step};
}
