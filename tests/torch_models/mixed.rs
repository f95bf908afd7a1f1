//! A model that is in part what kernels can be had for: graph breaks, an operator of its own, whole numbers, sizes that values tell.

use serde_json::Value;

use crate::Place;

const MIXED: &str = include_str!("models/mixed.py");

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_not_supported_stays_as_it_is_and_what_is_gets_its_kernels() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MIXED).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let captured = &profile["captured"];
    let has = |one: &Value, word: &str| one.as_str().unwrap().contains(word);
    let breaks = |text: &str| captured["notes"].as_array().unwrap().iter().filter(|note| has(note, text)).count();
    assert_eq!(breaks("graph break at model.py:"), 2, "{captured}");
    let regions = captured["regions"].as_array().unwrap();
    let why =
        |word: &str| regions.iter().filter(|it| it["why_not"].as_str().is_some_and(|why| why.contains(word))).count();
    assert_eq!(why("a tensor of bool"), 1, "the condition of the break: {captured}");
    assert!(why("no floating-point type") >= 2, "whole numbers: {captured}");
    let of_products = regions.iter().filter(|it| it["kind"] == "library" && it["why_not"].is_null());
    let product = of_products.map(|it| it["name"].as_str().unwrap()).next().unwrap();

    let run = place.begun(&[product]);
    assert!(run.contains(&format!("left {product}")), "{run}");
    place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    let verified: Value =
        serde_json::from_str(&place.said(&["verify", "my_kernels", "--model", "model", "--json", "--sessions", "1"]))
            .unwrap();
    let outputs = verified["outputs"].as_array().unwrap();
    assert!(outputs.iter().any(|it| it["output"] == 2) && outputs.iter().all(|it| it["wrong"].is_null()), "{verified}");
    assert!(verified["called"]["patched and compiled"][product].as_u64() > Some(0), "{verified}");

    let (seen, said) = place.python(
        "
import json, sys, torch
sys.path.insert(0, '.'); sys.path.insert(0, 'model')
import model as user, my_kernels
net, x = user.Model().eval(), user.get_inputs()[0]
my_kernels.enable()
with torch.no_grad():
    same = [bool(torch.allclose(one.double(), other.double(), 1e-4, 1e-4)) for one, other in zip(net(x), torch.compile(net, dynamic=True)(x))]
print(json.dumps(dict(same=same)))
",
    );
    assert_eq!(seen["same"], serde_json::json!([true, true, true]), "{seen}");
    assert!(said.contains("dynamic shapes"), "{said}");
}
