//! Experts: rows in groups, each with a matrix of its own, whose ends are drawn in order.

use serde_json::Value;

use crate::{OF_MINE, Place, text};

const EXPERTS: &str = r#"
import torch
from torch import nn
from torch.nn import functional as F

EXPERTS, WIDTH, HIDDEN, TOKENS = 4, 32, 64, 48

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 6)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 8)
        self.to(torch.bfloat16)

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        order = chosen.argsort()
        ends = F.one_hot(chosen, EXPERTS).sum(0).cumsum(0, dtype=torch.int32)
        hidden = F.silu(torch._grouped_mm(x[order], self.up, offs=ends))
        y = torch._grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
        return torch.empty_like(y).index_copy(0, order, y)

def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]
"#;

const KERNEL: &str = r#"/*---
op = "NAME"
dtypes = ["bf16"]
arch = ["native"]
---*/
#include <math.h>

void NAME(const T *x0, const T *w0, const int32_t *x1, T *out) {
    int64_t row = 0;
    for (int64_t e = 0; e < 4; e++)
        for (; row < x1[e]; row++) {
            float sums[64] = {0};
            for (int64_t k = 0; k < 32; k++)
                for (int64_t j = 0; j < 64; j++) sums[j] += ws_load(x0[row * 32 + k]) * ws_load(w0[(e * 32 + k) * 64 + j]);
            for (int64_t j = 0; j < 64; j++) {
                const float sum = ws_load(ws_store(sums[j]));
                out[row * 64 + j] = ws_store(sum / (1 + expf(-sum)));
            }
        }
}
"#;

#[test]
#[ignore = "the full suite: .ci/run"]
fn experts_are_targets_whose_groups_are_drawn_in_order() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), EXPERTS).unwrap();
    let profile: Value =
        serde_json::from_str(&place.said(&["profile", "model", "--json", "--write", "regions"])).unwrap();
    let regions = profile["captured"]["regions"].as_array().unwrap();
    let grouped = |it: &&Value| it["operators"].to_string().contains("grouped_mm") && it["why_not"].is_null();
    let targets: Vec<_> = regions.iter().filter(grouped).collect();
    // Each by itself, the first with what follows it, and both.
    assert_eq!(targets.len(), 4, "{profile}");
    // For GPUs a kernel ships for each by itself, whichever way its matrices lie.
    let shipped = |it: &&&Value| it["shipped"]["op"] == "grouped_mm";
    let mut turned: Vec<_> =
        targets.iter().filter(shipped).map(|it| it["shipped"]["symbols"]["trans_b"].as_i64()).collect();
    turned.sort_unstable();
    assert_eq!(turned, [Some(0), Some(1)], "{profile}");
    let first = |it: &&&Value| it["kind"] == "joined" && it["lines"].to_string().matches("_grouped_mm").count() == 1;
    let name = targets.iter().find(first).unwrap()["name"].as_str().unwrap();

    std::fs::create_dir(place.path(OF_MINE)).unwrap();
    let kernel = KERNEL.replace("NAME", name);
    std::fs::write(place.path(&format!("{OF_MINE}/{name}.c")), &kernel).unwrap();
    let run = place.begun(&[name]);
    assert!(run.contains(&format!("left {name}")) && run.contains("1 of 1 kernels were called"), "{run}");

    for (mistake, wrong) in [("groups alike", "row < 12 * (e + 1)"), ("none empty", "row <= e || row < x1[e]")] {
        std::fs::write(place.path("wrong.c"), kernel.replace("row < x1[e]", wrong)).unwrap();
        let problem = format!("regions/{name}/{name}.py");
        let output = place.warpsmith(&["bench", "wrong.c", "--problem", &problem]);
        let said = text(&output.stdout);
        assert!(!output.status.success() && said.contains("outside their bound"), "{mistake}: {said}");
    }
}
