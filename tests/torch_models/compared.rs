//! What `verify` compares: results of every kind, of models that change what they are given or keep a state.

use crate::Place;

const LOAD: &str = include_str!("../../src/torch/model/load.py");
const VERIFY: &str = include_str!("../../src/export/verify.py");

/// What `forward` does, after `h = x @ self.w`, and what `get_inputs` gives.
const MODELS: [(&str, &str, &str); 9] = [
    ("dataclass", "return Out(h, h.sum())", "[torch.randn(8, 16)]"),
    ("nested", "return {'a': [h, (h + 1,)]}", "{'x': torch.randn(8, 16)}"),
    ("in_place", "x += 1; return h + x", "[torch.randn(8, 16)]"),
    ("state", "self.seen.mul_(0.9).add_(h.mean()); return h + self.seen", "[torch.randn(8, 16)]"),
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
