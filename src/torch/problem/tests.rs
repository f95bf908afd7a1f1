//! Problems and regions as operations: names, types, how values are drawn, refusals.

#![allow(clippy::unwrap_used)]
use super::*;

fn figures(min: f64, max: f64, mean: f64, deviation: f64) -> Option<Figures> {
    Some(Figures {
        min,
        max,
        mean,
        deviation,
        zeros: 0.0,
        whole: min == max,
        count: 4096,
        rectified: None,
        ends: false,
        hidden: None,
    })
}

fn form(name: &str, shape: &[usize], dtype: &str, figures: Option<Figures>) -> TensorForm {
    TensorForm { name: name.into(), shape: shape.into(), dtype: dtype.into(), figures }
}

fn described() -> Described {
    Described {
        inputs: vec![
            Argument::Input(form("x", &[16, 64], "float32", figures(-3.2, 3.1, 0.001, 0.998))),
            Argument::Scalar { name: "s".into(), value: 2.5 },
            Argument::Constant { name: "mode".into(), text: "'mean'".into() },
            Argument::Input(form("index", &[16], "int64", figures(0.0, 9.0, 4.0, 2.0))),
            Argument::State(form("bn.weight", &[64], "float32", figures(1.0, 1.0, 1.0, 0.0))),
            Argument::State(form("x", &[64], "float32", figures(-0.12, 0.12, 0.0, 0.07))),
        ],
        outputs: vec![Given { shape: vec![], dtype: "float32".into() }],
        flops: 0,
        structure: vec![],
    }
}

#[test]
fn a_problem_is_an_operation_with_the_files_own_shapes() {
    let problem = Problem::new("7_Scaled.py", "text", described()).unwrap();
    let op = problem.source.operation().unwrap();
    assert_eq!(
        op.c_function(),
        "void p7_scaled(const T *x, const int64_t *index, const T *bn_weight, const T *x_2, T *out, float s);"
    );
    let shape = op.complete(&Shape::default()).unwrap();
    assert_eq!(op.all_elements(&shape).unwrap(), 16 * 64 + 16 + 64 + 64 + 1);
    assert!(op.tensors[2].weight && !op.tensors[0].weight && !op.adversarial.is_empty());
    assert!(
        problem
            .source
            .toml
            .contains(r#"draw = { dist = "file", like = { dist = "normal", scale = "1", shift = "0" } }"#),
        "{}",
        problem.source.toml
    );
    assert!(problem.source.toml.contains(r#"{ dist = "uniform", scale = "1", shift = "0.5" }"#));
}

#[test]
fn what_cannot_be_a_target_is_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut Described)| {
        let mut it = described();
        change(&mut it);
        Problem::new("a.py", "", it).unwrap_err().to_string()
    };
    let first = |it: &mut Described, change: &dyn Fn(&mut TensorForm)| match &mut it.inputs[0] {
        Argument::Input(form) => change(form),
        _ => unreachable!(),
    };
    assert!(refused(&|it| first(it, &|form| form.dtype = "complex64".into())).contains("complex64"));
    assert!(refused(&|it| first(it, &|form| form.shape = vec![3, 0])).contains("no elements"));
    let far = figures(f64::from(f32::MIN), 1.0, -1.0, 1e30);
    assert!(refused(&|it| first(it, &|form| form.figures = far)).contains("reaches from -3.4e38 to 1.0e0"));
    assert!(refused(&|it| it.outputs[0].dtype = "float64".into()).contains("float64"));
}

#[test]
fn what_has_a_structure_keeps_it_in_hostile_inputs_too() {
    let hostile = |change: &dyn Fn(&mut Described)| {
        let mut it = described();
        change(&mut it);
        let op = Problem::new("a.py", "", it).unwrap().source.operation().unwrap();
        let of_x = op.hostile_inputs().filter(|it| it.draw.contains_key("x"));
        of_x.map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    assert!(hostile(&|_| {}).len() > 12);
    let scaled = ["large in x", "small in x", "wide_rows in x"];
    assert_eq!(hostile(&|it| it.structure = vec!["triu".into()]), scaled);
    let zeros = Figures { zeros: 0.5, ..figures(-3.0, 3.0, 0.0, 1.0).unwrap() };
    let halved = |it: &mut Described| {
        if let Argument::Input(form) = &mut it.inputs[0] {
            form.figures = Some(zeros);
        }
    };
    assert_eq!(hostile(&halved), scaled);
}

#[test]
fn what_is_zero_in_part_is_a_regions_input_where_it_is_drawn_so() {
    let of = |rectified| {
        let mut it = described();
        if let Argument::Input(form) = &mut it.inputs[0] {
            form.figures = Some(Figures { zeros: 0.5, rectified, ..figures(0.0, 3.0, 0.4, 0.58).unwrap() });
        }
        Problem::region("a.py", "", it, Bar::Compiled)
    };
    let refused = of(None).unwrap_err().to_string();
    assert!(refused.contains("50 % of `x` are zeros"), "{refused}");
    let source = of(Some([1.04, -0.0001])).unwrap().source;
    assert!(source.toml.contains("dist = \"rectified\", scale = \"1\", shift = \"-0.0001\""), "{}", source.toml);
    let op = source.operation().unwrap();
    assert!(op.hostile_inputs().any(|it| it.name == "shifted in x"), "what a kernel meets beside is free");
}

#[test]
fn what_hides_scores_is_drawn_among_the_others_and_in_whole_rows_where_that_has_a_meaning() {
    let of = |figures: Figures, hidden| {
        let mut it = described();
        if let Argument::Input(form) = &mut it.inputs[0] {
            form.figures = Some(Figures { hidden: Some(hidden), ..figures });
        }
        Problem::region("a.py", "", it, Bar::Compiled).unwrap().source
    };
    let zeros = Figures { zeros: 1.0, ..figures(0.0, 0.0, 0.0, 0.0).unwrap() };
    let (number, infinity) = (of(zeros, -65536.0), of(zeros, 0.0));
    let half = |low: &str| format!("dist = \"constant\", scale = \"0\", specials = [{{ value = {low}, count = 32 }}");
    assert!(number.toml.contains(&half("-65536.0")) && number.toml.contains("every = 7"), "{}", number.toml);
    assert!(infinity.toml.contains(&half("-inf")) && !infinity.toml.contains("every"), "{}", infinity.toml);
    let learnt = of(figures(-3.2, 3.1, 0.001, 0.998).unwrap(), f64::from(f32::MIN));
    assert!(
        learnt.toml.contains("dist = \"normal\", scale = \"1\", shift = \"0\", specials = [{ value = -3.4"),
        "{}",
        learnt.toml
    );
    for source in [&number, &infinity, &learnt] {
        let op = source.operation().unwrap();
        assert!(op.hostile_inputs().any(|it| it.name == "shifted in x"), "what a kernel meets beside is free");
    }
}

#[test]
fn whole_numbers_go_in_and_come_out_as_such() {
    let mut it = described();
    it.inputs.push(Argument::Input(form("mask", &[16], "bool", None)));
    it.outputs = ["int64", "bool"].map(|dtype| Given { shape: vec![16], dtype: dtype.into() }).into();
    let op = Problem::new("a.py", "", it).unwrap().source.operation().unwrap();
    let function = op.c_function();
    assert!(function.contains("const uint8_t *mask, int64_t *out0, uint8_t *out1"), "{function}");
}

#[test]
fn a_region_takes_whole_numbers_of_any_width_and_truth_values() {
    let mut it = described();
    it.inputs.push(Argument::Input(form("quantised", &[16], "int8", figures(-127.0, 127.0, 0.0, 73.0))));
    it.inputs.push(Argument::Input(form("kept", &[16], "bool", figures(1.0, 1.0, 1.0, 0.0))));
    let source = Problem::region("a.py", "", it.clone(), Bar::Compiled).unwrap().source;
    assert!(source.toml.contains(r#"{ dist = "index", scale = "255", shift = "-127" }"#), "{}", source.toml);
    assert!(source.toml.contains(r#"{ dist = "index", scale = "2" }"#), "a mask may hide something: {}", source.toml);
    let op = source.operation().unwrap();
    let function = op.c_function();
    assert!(function.contains("const int8_t *quantised, const uint8_t *kept"), "{function}");
    let alike = op.hostile_inputs().find(|it| it.name == "rows alike in kept").unwrap();
    assert_eq!(alike.draw["kept"].specials.iter().map(|it| it.value).collect::<Vec<_>>(), [0.0, 1.0]);
    assert!(!op.hostile_inputs().any(|it| it.name.starts_with("rows alike in quantised")));
    it.inputs.push(Argument::Input(form("offset", &[1], "int32", figures(3.0, 3.0, 3.0, 0.0))));
    let refused = Problem::region("a.py", "", it, Bar::Compiled).unwrap_err().to_string();
    assert!(refused.contains("`offset` is 3 everywhere"), "{refused}");
}

#[test]
fn what_is_in_single_precision_beside_bfloat16_stays_so_in_a_region() {
    let mut it = described();
    it.inputs.push(Argument::Input(form("narrow", &[16], "bfloat16", figures(-3.2, 3.1, 0.001, 0.998))));
    let function = |problem: Result<Problem, TorchError>| problem.unwrap().source.operation().unwrap().c_function();
    let region = function(Problem::region("a.py", "", it.clone(), Bar::Compiled));
    assert!(region.contains("const float *x,") && region.contains("const T *narrow, float *out"), "{region}");
    it.inputs.pop();
    let alone = function(Problem::region("a.py", "", it, Bar::Compiled));
    assert!(alone.contains("const T *x,") && alone.contains("T *out"), "{alone}");
}

#[test]
fn a_file_gives_its_operation_a_name_in_c() {
    for (file, name) in [
        ("23_Softmax.py", "p23_softmax"),
        ("a/b/my-op.py", "my_op"),
        ("26_GELU_.py", "p26_gelu"),
        ("int.py", "pint"),
        ("57_conv_transposed_2D__square_input__square_kernel.py", "p57_conv_transposed_2d_square_input_square_kernel"),
    ] {
        assert_eq!(name_of(file), name);
        assert!(is_name(&name_of(file)));
    }
}

#[test]
fn values_that_are_like_a_files_follow_the_figures() {
    let draw = |figures: Option<Figures>| usual(&form("x", &[64], "float32", figures)).unwrap();
    assert_eq!(draw(figures(0.0002, 0.9997, 0.5, 0.288)), r#"{ dist = "uniform", scale = "1", shift = "0" }"#);
    assert_eq!(draw(figures(-0.99, 0.995, 0.0, 0.577)), r#"{ dist = "uniform", scale = "2", shift = "-1" }"#);
    assert_eq!(draw(figures(-13.0, 21.0, 5.0, 4.02)), r#"{ dist = "normal", scale = "4", shift = "5" }"#);
}
