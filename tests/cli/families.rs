//! GPT-2 and BERT, decoding, and weights from files, as a user meets them.

use serde_json::{Value, json};

use crate::common::{BERT, CONFIG, GPT2, Place, kernels};

/// A user's repository with this model, really judged and run.
fn place(config: &str) -> Place {
    scripted(config).really_judged()
}

/// The same with what judges and runs scripted.
fn scripted(config: &str) -> Place {
    let place = Place::without_repository(&kernels::keeps());
    place.write("model/config.json", config);
    place.write("kernels/cpu/layernorm.c", &kernels::layernorm_keeps());
    place.write("reference/layernorm.toml", &kernels::few_cases("layernorm", "batch = 3\ndim = 31"));
    place.commit_all();
    place
}

/// The first column of words in the table's rows.
#[track_caller]
fn has_rows(table: &str, names: &[&str]) {
    for name in names {
        let row = |line: &str| {
            line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with(name)
        };
        assert!(table.lines().any(row), "no row `{name}` in\n{table}");
    }
}

/// One kernel of the model is improved, and the whole model compared before and after; where it is scripted, nothing is in doubt.
#[track_caller]
fn improves_layernorm_for_sure(place: &Place, more: &[&str], says: &str) {
    improves_layernorm(place, more, says);
    assert_eq!(place.statuses(), ["base", "keep"]);
    assert_eq!(place.ledger()[1].speedup, Some(100.0));
}

/// The same where it is measured.
#[track_caller]
fn improves_layernorm(place: &Place, more: &[&str], says: &str) {
    let run = [&["run", "model", "--only", "layernorm", "--seed", "1"], more].concat();
    let out = place.warpsmith(&run).ok();
    // A machine that is busy enough may leave even this gain in doubt, but never make it wrong.
    let statuses = place.statuses();
    let kept = statuses == ["base", "keep"];
    assert!(kept || statuses == ["base", "revert"], "{out}");
    assert!(out.contains("ended because no targets left"), "{out}");
    assert!(!kept || (out.contains("outputs agree to ") && out.contains(says)), "{out}");
    let verified = place.warpsmith(&["verify", "model"]).ok();
    assert!(verified.contains("outputs agree to ") && verified.contains(says), "{verified}");
    assert_eq!(verified.lines().any(|line| line.starts_with("layernorm ")), kept, "{verified}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_gpt2_is_profiled_improved_and_verified() {
    let place = place(GPT2);
    let table = place.warpsmith(&["profile", "model"]).ok();
    has_rows(
        &table,
        &[
            "matmul",
            "layernorm",
            "flash_attention",
            "embedding",
            "added embedding",
            "split q, k, v",
            "gelu (tanh)",
            "residual add",
        ],
    );
    assert!(table.contains("· 1x16 tokens ·"), "{table}");
    improves_layernorm(&place, &[], "same next token at 16 of 16 positions");
}

#[test]
fn a_bert_is_profiled_improved_and_verified() {
    let place = place(BERT);
    let table = place.warpsmith(&["profile", "model"]).ok();
    let glue = ["embedding", "added embedding", "gelu", "residual add", "first token", "tanh"];
    has_rows(&table, &[&["matmul", "layernorm", "flash_attention"][..], &glue].concat());
    improves_layernorm_for_sure(&scripted(BERT), &["--batch", "2"], "vectors of ");
    let said = place.warpsmith(&["profile", "model", "--phase", "decode"]).refusal();
    assert!(said.contains("model is an encoder") && said.contains("--phase prefill"), "{said}");
    let said = place.warpsmith(&["profile", "model", "--seq", "33"]).refusal();
    assert!(said.contains("a table of 32 positions"), "{said}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_decoding_run_is_profiled_improved_and_verified_in_its_phase() {
    let place = place(GPT2);
    let table = place.warpsmith(&["profile", "model", "--phase", "decode", "--batch", "2"]).ok();
    assert!(table.contains("· 2x1 tokens after 15 ·"), "{table}");
    has_rows(&table, &["append to cache", "split q, k, v", "layernorm"]);
    let place = scripted(GPT2);
    improves_layernorm_for_sure(&place, &["--phase", "decode", "--batch", "4"], "tokens after 15");
    // A run keeps its phase, as it keeps the rest of its pass.
    let said = place.warpsmith(&["run", "model", "--resume", "--phase", "prefill"]).refusal();
    assert!(said.contains("a resumed run keeps its pass"), "{said}");
    let prefill = place.warpsmith(&["verify", "model", "--phase", "prefill"]).ok();
    assert!(prefill.contains("· 1x16 tokens ·"), "{prefill}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_bert_is_improved_by_the_real_judge() {
    improves_layernorm(&place(BERT), &["--batch", "2"], "vectors of ");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_decoding_run_is_improved_by_the_real_judge() {
    improves_layernorm(&place(GPT2), &["--phase", "decode", "--batch", "4"], "tokens after 15");
}

#[test]
fn a_llama_decodes_too() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let profile = place.warpsmith(&["profile", "model", "--phase", "decode", "--json"]).ok();
    let profile: Value = serde_json::from_str(&profile).unwrap();
    assert_eq!((profile["pass"]["phase"].as_str(), profile["pass"]["seq"].as_u64()), (Some("decode"), Some(16)));
    let attention =
        profile["rows"].as_array().unwrap().iter().find(|row| row["what"]["op"]["op"] == "flash_attention").unwrap();
    let shape = &attention["what"]["op"]["shape"];
    assert_eq!((shape["S_q"].as_i64(), shape["S_kv"].as_i64()), (Some(1), Some(16)), "{attention}");
}

/// A safetensors file of zeros in half precision.
fn zeros(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert((*name).to_owned(), json!({"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let text = Value::Object(header).to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0; end as usize]].concat()
}

#[test]
fn weights_beside_the_configuration_are_read_and_missing_ones_named() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    place.write("model/config.json", CONFIG);
    let path = place.root.join("model/model.safetensors");
    std::fs::write(&path, zeros(&[("model.embed_tokens.weight", &[128, 64]), ("model.norm.weight", &[64])])).unwrap();
    let out = place.warpsmith(&["profile", "model"]).ok();
    assert!(out.contains("note: 2 of 12 weights are read from model.safetensors"), "{out}");
    assert!(out.contains("note: 10 weights are in no file and are drawn: `model.layers.0."), "{out}");
    // A file that is cut short, another shape, and one that is no such file.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let said = place.warpsmith(&["profile", "model"]).refusal();
    assert!(said.contains("model.safetensors: tensor `model.norm.weight` ends at byte"), "{said}");
    std::fs::write(&path, zeros(&[("model.embed_tokens.weight", &[64, 128])])).unwrap();
    let said = place.warpsmith(&["profile", "model"]).refusal();
    assert!(said.contains("`model.embed_tokens.weight` has the shape [64, 128]"), "{said}");
    std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let said = place.warpsmith(&["run", "model"]).refusal();
    assert!(said.contains("model.safetensors: ") && said.contains("header"), "{said}");
}
