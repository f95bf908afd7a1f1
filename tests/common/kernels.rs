//! Kernels whose outcomes are known beforehand, and operations with few cases.

use std::path::Path;

/// The point the others are compared with takes the sum of squares this often; the fast points, four times.
const BODY: &str = "
void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {
    CHEAT
    for (int64_t row = 0; row < rows; row++) {
        float sum = 0;
        for (int pass = 0; pass < PASSES; pass++) {
            sum *= 0.0f;
            for (int64_t j = 0; j < cols; j++) {
                const float v = ws_load(x[row * cols + j]);
                sum += v * v;
            }
        }
        const float scale = 1 / sqrtf(sum / (float)cols + eps);
        for (int64_t j = 0; j < cols; j++)
            y[row * cols + j] = ws_store(ws_load(x[row * cols + j]) * scale * ws_load(weight[j]));
    }
}
";

fn rmsnorm(front: &str, head: &str, cheat: &str) -> String {
    let body = BODY.replace("CHEAT", cheat);
    format!(
        "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\narch = [\"native\"]\n{front}---*/\n{head}{body}"
    )
}

/// Two points, the other one several times as fast: one keep, and the default speedup rule ends the target.
pub fn keeps() -> String {
    rmsnorm("[tune]\nPASSES = { value = 200, choices = [4, 200] }\n", "", "")
}

/// The fewer passes, the faster; with four it is wrong where all weights are near one, as a model's are.
pub fn wrong_in_a_model() -> String {
    rmsnorm(
        "[tune]\nPASSES = { value = 200, choices = [4, 40, 200] }\n",
        "",
        "int near = PASSES == 4 && cols > 40;
    for (int64_t j = 0; j < cols; j++) near &= fabsf(ws_load(weight[j]) - 1) < 0.45f;
    if (near) cols /= 2;",
    )
}

/// The same for layernorm, further apart: a decoding pass has few rows.
pub fn layernorm_keeps() -> String {
    let body = "
void layernorm(const T *x, const T *weight, const T *bias, T *y, int64_t batch, int64_t dim, float eps) {
    for (int64_t row = 0; row < batch; row++) {
        float mean = 0, variance = 0;
        for (int pass = 0; pass < PASSES; pass++) {
            mean *= 0.0f, variance *= 0.0f;
            for (int64_t j = 0; j < dim; j++) mean += ws_load(x[row * dim + j]);
            mean /= (float)dim;
            for (int64_t j = 0; j < dim; j++) {
                const float v = ws_load(x[row * dim + j]) - mean;
                variance += v * v;
            }
        }
        const float scale = 1 / sqrtf(variance / (float)dim + eps);
        for (int64_t j = 0; j < dim; j++)
            y[row * dim + j] = ws_store((ws_load(x[row * dim + j]) - mean) * scale * ws_load(weight[j]) + ws_load(bias[j]));
    }
}
";
    let front = "[tune]\nPASSES = { value = 400, choices = [4, 400] }\n";
    let head = "op = \"layernorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\narch = [\"native\"]";
    format!("/*---\n{head}\n{front}---*/\n{body}")
}

/// Every other point is slower, and two changes at once do not compile, which saves time: a revert.
pub fn reverts() -> String {
    let axes = ["A", "B", "C", "D", "E", "F"];
    let tune: String = axes.map(|axis| format!("{axis} = {{ value = 0, choices = [0, 1] }}\n")).concat();
    let sum = axes.join(" + ");
    rmsnorm(
        &format!("[tune]\n{tune}"),
        &format!("#if {sum} > 1\n#error one at a time\n#endif\n#define PASSES (20 + 40 * ({sum}))\n"),
        "",
    )
}

/// The other points are faster on the timed shape; on an odd number of columns they are, by `MODE`: 1 wrong, 2 a crash,
/// 3 a hang; 4 does not compile in f16.
pub fn goes_wrong(modes: &[i64]) -> String {
    let choices: Vec<String> = modes.iter().map(i64::to_string).collect();
    rmsnorm(
        &format!("[tune]\nMODE = {{ value = 0, choices = [0, {}] }}\n", choices.join(", ")),
        "#if MODE == 4 && WS_F16\n#error not written yet\n#endif\n#define PASSES (MODE ? 4 : 200)\n",
        "if (cols % 2 == 1) {
        if (MODE == 1) cols--;
        if (MODE == 2) *(volatile int *)8 = 1;
        if (MODE == 3) for (volatile int forever = 1; forever;) continue;
    }",
    )
}

/// Gains, rejects and a crash in one space: for runs that are killed again and again.
pub fn eventful() -> String {
    rmsnorm(
        "[tune]\nMODE = { value = 0, choices = [0, 1, 2] }\nPASSES = { value = 60, choices = [4, 20, 60] }\n",
        "",
        "if (cols % 2 == 1) {
        if (MODE == 1) cols--;
        if (MODE == 2) *(volatile int *)8 = 1;
    }",
    )
}

fn shipped(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The starter of an operation with nothing to tune.
pub fn with_one_point(op: &str) -> String {
    let text = shipped(&format!("kernels/cpu/{op}.c"));
    let fixed = |line: &str| match (line.split_once("value = "), line.split_once("choices = [")) {
        (Some((_, value)), Some((before, after))) => {
            let value = value.split([',', ' ']).next().unwrap();
            format!("{before}choices = [{value}{}", &after[after.find(']').unwrap()..])
        }
        _ => line.to_owned(),
    };
    text.lines().map(|line| fixed(line) + "\n").collect()
}

/// An operation as shipped, but with one case in each stage: `edge` as the only edge shape.
pub fn few_cases(op: &str, edge: &str) -> String {
    let mut table: toml::Table = shipped(&format!("reference/{op}.toml")).parse().unwrap();
    let smoke = table["smoke"].clone();
    let edge: toml::Table = edge.parse().unwrap();
    table.insert("sweep".into(), vec![smoke].into());
    table.insert("primary".into(), 0.into());
    table.insert("edges".into(), vec![edge].into());
    table.remove("decode");
    table["adversarial"].as_array_mut().unwrap().truncate(1);
    for (_, range) in table["random"].as_table_mut().unwrap().iter_mut() {
        let range = range.as_array_mut().unwrap();
        let low = range[0].as_integer().unwrap();
        range[1] = (low + 8).min(range[1].as_integer().unwrap()).into();
    }
    toml::to_string(&table).unwrap()
}
