//! What `verify` compares: results of every kind, of models that change what they are given or keep a state.

use crate::Place;

const LOAD: &str = include_str!("../../src/torch/model/load.py");
const VERIFY: &str = include_str!("../../src/export/verify.py");

/// What `forward` does, after `h = x @ self.w`, and what `get_inputs` gives.
const MODELS: [(&str, &str, &str); 10] = [
    ("dataclass", "return Out(h, h.sum())", "[torch.randn(8, 16)]"),
    ("nested", "return {'a': [h, (h + 1,)]}", "{'x': torch.randn(8, 16)}"),
    ("in_place", "x += 1; return h + x", "[torch.randn(8, 16)]"),
    ("state", "self.seen.mul_(0.9).add_(h.mean()); return h + self.seen", "[torch.randn(8, 16)]"),
    ("reassigned", "self.seen = 0.9 * self.seen + h.mean(); return h + self.seen", "[torch.randn(8, 16)]"),
    ("complex", "return torch.fft.rfft(h)", "[torch.randn(8, 16)]"),
    ("turned", "return h", "[torch.randn(16, 8).t()]"),
    ("spread", "return h", "[torch.randn(16).expand(8, 16)]"),
    ("dropout", "return torch.nn.functional.dropout(h, training=True)", "[torch.randn(8, 16)]"),
    ("nothing", "return 3", "[torch.randn(8, 16)]"),
];

const PROGRAM: &str = r#"
import json, sys
sys.path.insert(0, ".")
import compared
answers = {}
for name in sys.argv[1:]:
    request = dict(threads=1, folder=name, device="cpu", dtype=None, seed=1, load=None, draws=2)
    try:
        model, kept, draws, eager, right = compared.prepared(request)
    except SystemExit as why:
        answers[name] = str(why)
        continue
    scaled = lambda *given: [one * 1.01 for one in compared.tensors_of(model(*given))]
    wrong = lambda call: any(row["wrong"] for row in compared.compare("way", kept.results(call, draws[1]), eager[1], right[1]))
    nan, ended = compared.check_nan("way", model, model, draws[0], kept)
    answers[name] = [right[1] is not None, wrong(model), wrong(scaled), nan["wrong"], any(bool(one.any()) for one in ended), wrong(model)]
print(json.dumps(answers))
"#;

#[test]
fn results_of_every_kind_are_compared_and_what_does_not_repeat_is_refused() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("compared.py"), format!("{LOAD}\n{VERIFY}")).unwrap();
    for (name, forward, inputs) in MODELS {
        let text = format!(
            "import dataclasses\nimport torch\n\n@dataclasses.dataclass\nclass Out:\n    a: object\n    b: object\n\n\
             class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
             self.w = torch.nn.Parameter(torch.randn(16, 16))\n        self.register_buffer('seen', torch.zeros(()))\n\n    \
             def forward(self, x):\n        h = x @ self.w\n        {forward}\n\ndef get_inputs():\n    return {inputs}\n"
        );
        std::fs::create_dir(place.path(name)).unwrap();
        std::fs::write(place.path(name).join("model.py"), text).unwrap();
    }
    let names: Vec<&str> = MODELS.iter().map(|(name, ..)| *name).collect();
    let (answers, _) = place.python_with(PROGRAM, &names);
    for name in names {
        let answer = &answers[name];
        match name {
            "dropout" => assert!(answer.as_str().unwrap().contains("something else"), "{answer}"),
            "nothing" => assert!(answer.as_str().unwrap().contains("no tensor"), "{answer}"),
            // In double precision; the model is right, a hundredth more is wrong; a NaN ends where it should, and nothing is left of it.
            _ => assert_eq!(*answer, serde_json::json!([true, false, true, null, true, false]), "{name}"),
        }
    }
}

const MASKED: &str = r#"
import torch

class Model(torch.nn.Module):
    """Causal attention of single numbers, where what is masked is multiplied by zero; and a result that the input has no part in."""

    def forward(self, x):
        scores = (x[:, None] * x[None]).tril().nan_to_num() + torch.full((8, 8), -torch.inf).triu(1)
        mixed = (scores.softmax(1)[:, :, None] * x[None, :, None]).sum(1)
        return torch.cat([mixed[:, 0], torch.ones(1)])

def get_inputs():
    return [torch.randn(8)]
"#;

const NANS: &str = r#"
import json, sys, torch
sys.path.insert(0, ".")
import compared
request = dict(threads=1, folder="masked", device="cpu", dtype=None, seed=1, load=None, draws=1)
model, kept, draws, *_ = compared.prepared(request)

def changed(where, to):
    def call(x):
        made = model(x)
        return torch.where(where(torch.arange(9)) & made.isnan().any(), to, made)
    return call

# The third of eight values is none: the first two results have it as zero times NaN, and the last has no part in it.
calls = {
    "as it is": model,
    "steps over what is masked": changed(lambda at: at < 2, 0.5),
    "steps over some of it": changed(lambda at: at == 1, 0.5),
    "loses one": changed(lambda at: at == 5, 0.5),
    "spreads it": changed(lambda at: at == 8, torch.nan),
}
print(json.dumps({name: compared.check_nan("way", call, model, draws[0], kept)[0]["wrong"] is None for name, call in calls.items()}))
"#;

#[test]
fn a_nan_that_only_reaches_a_result_as_zero_times_it_may_be_stepped_over() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("compared.py"), format!("{LOAD}\n{VERIFY}")).unwrap();
    std::fs::create_dir(place.path("masked")).unwrap();
    std::fs::write(place.path("masked/model.py"), MASKED).unwrap();
    let (right, _) = place.python(NANS);
    for way in ["as it is", "steps over what is masked", "steps over some of it"] {
        assert_eq!(right[way], true, "{way}");
    }
    for way in ["loses one", "spreads it"] {
        assert_eq!(right[way], false, "{way}");
    }
}
