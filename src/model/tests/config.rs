use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::{Bert, BertHead, ModelError};

#[test]
fn a_llama_is_read_with_every_key() {
    let config = parse(&llama()).unwrap();
    assert_eq!((config.hidden, config.intermediate, config.layers, config.vocab), (64, 176, 3, 500));
    assert_eq!((config.heads, config.head_dim, config.q_width(), config.norm_eps), (8, 8, 64, 1e-5));
    let wanted = Llama { kv_heads: 4, rope_theta: 500_000.0, qkv_bias: false, o_bias: false, sliding_window: None };
    assert_eq!(*own(&config), wanted);
    assert!(!config.tie_word_embeddings && config.notes.is_empty());
}

#[test]
fn absent_optional_keys_take_the_familys_defaults() {
    let bare = ["num_key_value_heads", "rms_norm_eps", "rope_theta"].into_iter().fold(llama(), without);
    let config = parse(&bare).unwrap();
    assert_eq!((own(&config).kv_heads, config.norm_eps, own(&config).rope_theta), (8, 1e-6, 10_000.0));
    assert_eq!((config.max_positions, own(&config).sliding_window, config.dtype), (2048, None, None));
    let null = with(llama(), "num_key_value_heads", Value::Null);
    assert_eq!(own(&parse(&null).unwrap()).kv_heads, 8);
}

#[test]
fn the_families_differ_in_biases_and_windows() {
    let named = |name: &str| with(llama(), "architectures", json!([name]));
    let read = |config: &Value| own(&parse(config).unwrap()).clone();
    let qwen = read(&named("Qwen2ForCausalLM"));
    assert_eq!((qwen.qkv_bias, qwen.o_bias), (true, false));
    let unused = with(named("Qwen2ForCausalLM"), "sliding_window", json!(16));
    assert_eq!(read(&unused).sliding_window, None);
    assert_eq!(read(&with(unused, "use_sliding_window", json!(true))).sliding_window, Some(16));
    let mistral = named("MistralForCausalLM");
    assert_eq!(read(&mistral).sliding_window, Some(4096));
    assert_eq!(read(&with(mistral, "sliding_window", Value::Null)).sliding_window, None);
    let biased = read(&with(llama(), "attention_bias", json!(true)));
    assert!(biased.qkv_bias && biased.o_bias);
}

#[test]
fn the_model_type_serves_where_no_architecture_is_named() {
    let config = with(without(llama(), "architectures"), "model_type", json!("mistral"));
    assert_eq!(own(&parse(&config).unwrap()).sliding_window, Some(4096));
    let empty = with(llama(), "architectures", json!([]));
    assert_eq!(own(&parse(&empty).unwrap()).sliding_window, None);
    assert_eq!(parse(&without(gpt2(), "architectures")).unwrap().kind, Kind::Gpt2);
    let bare = parse(&without(bert("BertForMaskedLM"), "architectures")).unwrap();
    assert_eq!(bare.kind, Kind::Bert(Bert { type_vocab: 2, head: BertHead::Pooler }));
}

#[test]
fn a_model_type_with_other_keys_than_the_architecture_is_refused() {
    let said = parse(&with(gpt2(), "model_type", json!("bert"))).unwrap_err();
    assert_eq!(
        said,
        "tiny/config.json: `model_type` is bert; it must be `gpt2`, as the architecture GPT2LMHeadModel says"
    );
    assert!(parse(&with(llama(), "model_type", json!("gpt2"))).unwrap_err().contains("`model_type` is gpt2"));
    assert!(parse(&with(llama(), "model_type", json!("qwen2"))).is_ok());
}

#[test]
fn another_architecture_is_refused_with_what_is_supported() {
    let falcon = with(llama(), "architectures", json!(["FalconForCausalLM"]));
    let said = parse(&falcon).unwrap_err();
    assert_eq!(
        said,
        "tiny is a FalconForCausalLM; supported architectures are LlamaForCausalLM, MistralForCausalLM, \
         Qwen2ForCausalLM, GPT2LMHeadModel, BertForMaskedLM, BertModel"
    );
    let nameless = parse(&json!({})).unwrap_err();
    assert!(nameless.contains("no stated architecture") && nameless.contains("Qwen2ForCausalLM"), "{nameless}");
}

#[test]
fn what_no_operation_computes_is_refused_by_its_key() {
    let masked = || bert("BertForMaskedLM");
    for (config, key, value) in [
        (llama(), "hidden_act", json!("gelu")),
        (llama(), "mlp_bias", json!(true)),
        (gpt2(), "activation_function", json!("relu")),
        (gpt2(), "scale_attn_weights", json!(false)),
        (gpt2(), "scale_attn_by_inverse_layer_idx", json!(true)),
        (gpt2(), "add_cross_attention", json!(true)),
        (masked(), "hidden_act", json!("gelu_new")),
        (masked(), "position_embedding_type", json!("relative_key")),
        (masked(), "is_decoder", json!(true)),
        (masked(), "add_cross_attention", json!(true)),
    ] {
        let said = parse(&with(config, key, value.clone())).unwrap_err();
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert!(said.contains(&format!("`{key}` {shown} is not supported: ")), "{said}");
    }
}

/// Every family's configuration with the keys that must be there.
fn required() -> Vec<(Value, Vec<&'static str>)> {
    let llama_keys =
        ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"].to_vec();
    let bert_keys = [llama_keys.clone(), vec!["max_position_embeddings"]].concat();
    let gpt2_keys = ["n_embd", "n_head", "n_layer", "n_positions", "vocab_size"].to_vec();
    vec![(llama(), llama_keys), (gpt2(), gpt2_keys), (bert("BertModel"), bert_keys)]
}

#[test]
fn a_missing_size_is_named() {
    for (config, keys) in required() {
        for key in keys {
            let said = parse(&without(config.clone(), key)).unwrap_err();
            assert!(said.contains(&format!("has no `{key}`")), "{said}");
        }
    }
}

#[test]
fn a_size_that_no_model_can_have_is_named_with_the_values_allowed() {
    let bad =
        [json!(0), json!(-4096), json!(1e300), json!(0.5), json!("64"), json!([64]), json!(u64::MAX), json!(true)];
    let more = [
        (llama(), vec!["num_key_value_heads", "head_dim"]),
        (gpt2(), vec!["n_inner", "n_ctx"]),
        (bert("BertModel"), vec!["type_vocab_size"]),
    ];
    for (config, keys) in required().into_iter().chain(more) {
        for (key, value) in keys.iter().flat_map(|key| bad.iter().map(move |value| (key, value))) {
            let said = parse(&with(config.clone(), key, value.clone())).unwrap_err();
            assert!(said.contains(&format!("`{key}` is")) && said.contains("must be"), "{key} {value}: {said}");
        }
    }
    let whole = with(llama(), "hidden_size", json!(64.0));
    assert_eq!(parse(&whole).unwrap().hidden, 64);
}

#[test]
fn numbers_of_the_norm_and_the_rotation_are_bounded() {
    for (key, value) in [("rms_norm_eps", json!(0)), ("rms_norm_eps", json!(-1e-6)), ("rope_theta", json!(0.5))] {
        let said = parse(&with(llama(), key, value)).unwrap_err();
        assert!(said.contains(key), "{said}");
    }
    let nested = with(without(llama(), "rope_theta"), "rope_parameters", json!({"rope_theta": 1e6}));
    assert_eq!(own(&parse(&nested).unwrap()).rope_theta, 1e6);
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let ragged = parse(&with(llama(), "num_attention_heads", json!(7))).unwrap_err();
    assert!(ragged.contains("a divisor of hidden_size 64"), "{ragged}");
    let groups = parse(&with(llama(), "num_key_value_heads", json!(3))).unwrap_err();
    assert!(groups.contains("a divisor of num_attention_heads 8"), "{groups}");
    let odd = parse(&with(llama(), "head_dim", json!(9))).unwrap_err();
    assert!(odd.contains("even"), "{odd}");
    let ragged = parse(&with(gpt2(), "n_head", json!(7))).unwrap_err();
    assert!(ragged.contains("`n_head` is 7; it must be a divisor of n_embd 64"), "{ragged}");
    let ragged = parse(&with(bert("BertModel"), "num_attention_heads", json!(7))).unwrap_err();
    assert!(ragged.contains("a divisor of hidden_size 64"), "{ragged}");
    let wide = with(with(llama(), "head_dim", json!(4096)), "num_attention_heads", json!(65536));
    assert!(parse(&wide).unwrap_err().contains("head_dim"));
}

#[test]
fn the_published_dtype_is_read_under_both_names() {
    assert_eq!(parse(&with(llama(), "torch_dtype", json!("bfloat16"))).unwrap().dtype, Some(Dtype::Bf16));
    assert_eq!(parse(&with(llama(), "dtype", json!("float16"))).unwrap().dtype, Some(Dtype::F16));
    assert_eq!(parse(&with(llama(), "dtype", json!("int8"))).unwrap().dtype, None);
}

#[test]
fn what_is_not_followed_is_noted() {
    let config = with(llama(), "quantization_config", json!({"bits": 4}));
    let config = with(config, "rope_scaling", json!({"type": "linear", "factor": 2.0}));
    let notes = parse(&config).unwrap().notes;
    assert_eq!(notes.len(), 2);
    assert!(notes[0].contains("quantization_config") && notes[1].contains("rope_scaling"));
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    for text in ["", "{", "[1, 2]", "null", "\"llama\"", "hidden_size: 64", "\0"] {
        let error = ModelConfig::parse("tiny", text).unwrap_err();
        assert!(matches!(error, ModelError::NotJson { .. }), "{text:?}: {error}");
    }
    assert!(ModelConfig::parse("tiny", &format!("\u{feff}{}", llama())).is_ok());
}

#[test]
fn a_path_that_is_no_model_directory_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let missing = ModelConfig::load(&dir.path().join("nowhere")).unwrap_err().to_string();
    assert!(missing.contains("is not a directory"), "{missing}");
    let empty = ModelConfig::load(dir.path()).unwrap_err().to_string();
    assert!(empty.contains("config.json"), "{empty}");
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    let folder = ModelConfig::load(dir.path()).unwrap_err().to_string();
    assert!(folder.contains("not a regular file"), "{folder}");
    std::fs::remove_dir(dir.path().join("config.json")).unwrap();
    std::fs::write(dir.path().join("config.json"), [0xff, 0xfe, 0x00]).unwrap();
    assert!(matches!(ModelConfig::load(dir.path()), Err(ModelError::Unreadable { .. })));
    std::fs::write(dir.path().join("config.json"), vec![b' '; 2 << 20]).unwrap();
    assert!(ModelConfig::load(dir.path()).unwrap_err().to_string().contains("too long"));
    std::fs::write(dir.path().join("config.json"), llama().to_string()).unwrap();
    let name = dir.path().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(ModelConfig::load(&dir.path().join(".")).unwrap().name, name);
}

/// Any JSON value, three levels deep.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|v| json!(v)),
        (1u64..100_000).prop_map(Value::from),
        ".{0,60}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,12}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever stands under whichever key, the answer is a configuration whose graph can be counted, or an error.
    #[test]
    fn no_configuration_makes_it_panic(
        family in 0..5usize,
        key in prop::sample::select(vec![
            "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
            "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps", "rope_theta", "hidden_act",
            "tie_word_embeddings", "attention_bias", "sliding_window", "torch_dtype", "rope_parameters",
            "activation_function", "n_embd", "n_head", "n_layer", "n_positions", "n_ctx", "n_inner",
            "layer_norm_epsilon", "scale_attn_weights", "layer_norm_eps", "max_position_embeddings",
            "type_vocab_size", "position_embedding_type", "is_decoder", "add_cross_attention",
        ]),
        value in any_json(),
    ) {
        match parse(&with(one_of_each().swap_remove(family), key, value)) {
            Ok(config) => {
                for (phase, seq) in [(Phase::Prefill, 1 << 12), (Phase::Prefill, 32), (Phase::Decode, 32)] {
                    if let Ok(graph) = Graph::build(&config, pass(phase, 1 << 10, seq)) {
                        prop_assert!(graph.memory().total() > 0);
                    }
                }
            }
            Err(said) => prop_assert!(!said.contains('\n') && said.len() < 300, "{}", said),
        }
    }
}
