//! A package with one kernel that is wrong: who is told of it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Place;

/// Its result is its first input.
const WRONG: &str = "void ws_entry(void *const *given, void *ints, void *floats) {
    (void)ints, (void)floats;
    const float *from = given[0];
    float *to = given[INPUTS];
    for (long at = 0; at < ELEMENTS; at++) to[at] = from[at];
}
";

/// The gate's file is another one, which the plan knows by its digest: nothing but results can tell.
pub(crate) fn the_kernel_that_is_wrong_is_named(place: &Place, names: &BTreeMap<&str, String>) {
    let folder = place.path("my_kernels/build/torch-cpu");
    let mut plans: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("plans.json")).unwrap()).unwrap();
    let (gate, norm) = (&names["gate"], &names["norm"]);
    let plan = plans["kernels"].as_array_mut().unwrap().iter_mut().find(|plan| plan["name"] == **gate).unwrap();
    let inputs = plan["inputs"].as_array().unwrap().len();
    let shape = plan["outputs"][0]["shape"].as_array().unwrap();
    let elements: u64 = shape.iter().map(|size| size.as_u64().unwrap()).product();
    let text = WRONG.replace("INPUTS", &inputs.to_string()).replace("ELEMENTS", &elements.to_string());
    let (source, image) = (place.path("wrong.c"), place.path("wrong.so"));
    std::fs::write(&source, text).unwrap();
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&image, &source]).status().unwrap().success());
    let bytes = std::fs::read(&image).unwrap();
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(folder.join(format!("cpu/{digest}.so")), bytes).unwrap();
    plan["image"] = serde_json::json!({ "path": format!("cpu/{digest}.so"), "sha256": digest });
    std::fs::write(folder.join("plans.json"), plans.to_string()).unwrap();

    let asked = ["verify", "my_kernels", "--model", "model", "--diagnose", "--json", "--sessions", "1"];
    let output = place.warpsmith(&asked);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let verified: Value = serde_json::from_slice(&output.stdout).unwrap();
    let diagnosis = &verified["diagnosis"];
    let culprits: Vec<&Value> = diagnosis["culprits"].as_array().unwrap().iter().map(|it| &it["op"]).collect();
    assert_eq!(culprits, [gate.as_str()], "{diagnosis}");
    let suspects = diagnosis["suspects"].as_array().unwrap();
    assert_eq!([&suspects[0]["op"], &suspects[1]["op"]], [gate.as_str(), norm.as_str()], "{diagnosis}");
    let (wrong, right) = (&suspects[0]["alone"]["ran"], &suspects[1]["alone"]["ran"]);
    assert!(wrong["output"]["error"].as_f64() > wrong["output"]["limit"].as_f64(), "{diagnosis}");
    assert!(right["output"]["wrong"].is_null() && right["called"].as_u64() > Some(0), "{diagnosis}");
    assert!(right["before_us"][0].as_f64() > Some(0.0) && right["after_us"][0].as_f64() > Some(0.0), "{diagnosis}");
}
