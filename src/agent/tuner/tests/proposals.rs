//! Single proposals.

use super::*;

#[test]
fn a_space_of_one_point_is_exhausted_at_once() {
    let world = World::new(&[1], 1);
    let text = world.text(&[0]);
    let offer = ask(&mut Tuner::new(), &world.brief(&text, 1), &mut bench(&world, text.clone()));
    assert_eq!(offer, Offer::Exhausted { why: "all 1 points of its space were tried".into() });
}

#[test]
fn the_first_moves_change_one_tunable_each() {
    let world = World::new(&[5, 4, 3], 3);
    let text = world.text(&[0, 3, 1]);
    let mut bench = bench(&world, text.clone());
    let Offer::Proposal(Proposal { technique, description, predicted, .. }) =
        ask(&mut Tuner::new(), &world.brief(&text, 1), &mut bench)
    else {
        panic!()
    };
    assert_eq!(technique, "tune");
    assert!(description.contains('→') && predicted.is_some(), "{description}");
    let before = KernelFile::parse(&text).unwrap().values();
    let single = bench.screened.iter().filter(|text| {
        let values = KernelFile::parse(text).unwrap().values();
        values.iter().filter(|(name, value)| before[*name] != **value).count() == 1
    });
    assert_eq!(single.count(), 3);
}

#[test]
fn the_first_move_of_a_tunable_goes_as_far_as_it_is_worth_trying() {
    let world = World::new(&[9, 2], 3);
    // From the middle of nine half the length leads to the first, 1.
    let text = world.text(&[4, 0]).replace("[tune]", "tune_where = \"T0 >= 4\"\n[tune]");
    let (kernel, brief) = (KernelFile::parse(&text).unwrap(), world.brief(&text, 1));
    let batch = Search::new(&brief, &kernel).batch(&mut Memory::default(), &Vec::new());
    let moved: Vec<Values> = batch.iter().map(|it| KernelFile::parse(&it.text).unwrap().values()).collect();
    let first = |values: &Values| (values["T0"], values["T1"]);
    assert_eq!(moved.iter().map(first).collect::<Vec<_>>(), [(4, 1), (16, 2)]);
}

#[test]
fn where_every_screen_fails_the_judge_is_asked_and_in_the_end_nothing_is_left() {
    let world = World { broken: |_| true, ..World::new(&[3, 2], 1) };
    let course = run(&world, &world.text(&[0, 0]), 60);
    assert_eq!(course.keeps, 0);
    assert!(course.end.starts_with("all 6 points"), "{}", course.end);
}

#[test]
fn the_judge_sees_one_setting_even_where_screening_promises_nothing() {
    let world = World { noise: (0.0, 0.0), ..World::new(&[3, 2], 1) };
    let texts: Vec<String> = world.points().iter().map(|point| world.text(point)).collect();
    let best = texts.iter().min_by(|a, b| world.total(a).total_cmp(&world.total(b))).unwrap();
    let course = run(&world, best, 60);
    assert_eq!((course.steps.len(), course.keeps), (2, 0));
    assert!(course.end.starts_with("all 6 points"), "{}", course.end);
}

#[test]
fn other_code_is_another_target_and_the_same_code_is_not_begun_anew() {
    let world = World::new(&[3, 2], 1);
    let text = world.text(&[0, 0]);
    let mut tuner = Tuner::new();
    ask(&mut tuner, &world.brief(&text, 1), &mut bench(&world, text.clone()));
    let touched = tuner.touched();
    assert!(touched > 0);
    // Another incumbent with the same code: what was touched stays so.
    let moved = world.text(&[2, 1]);
    ask(&mut tuner, &world.brief(&moved, 2), &mut bench(&world, moved.clone()));
    assert!(tuner.touched() >= touched);
    let other = text.replace("void x(void) {}", "void x(void) { ; }");
    ask(&mut tuner, &world.brief(&other, 3), &mut bench(&world, other.clone()));
    assert_eq!(tuner.state.targets.len(), 2);
}

#[test]
fn the_same_brief_and_state_give_the_same_proposal() {
    let world = World::new(&[5, 4, 3], 9);
    let text = world.text(&[4, 3, 2]);
    let offer = || ask(&mut Tuner::new(), &world.brief(&text, 1), &mut bench(&world, text.clone()));
    assert_eq!(offer(), offer());
}

#[test]
fn what_cannot_be_read_is_said_so() {
    let world = World::new(&[3], 1);
    let text = world.text(&[0]);
    let mut brief = world.brief(&text, 1);
    brief.incumbent = "void x(void) {}".into();
    let error = ready(Tuner::new().propose(&brief, &mut bench(&world, text.clone()))).unwrap_err();
    assert!(error.to_string().starts_with("the incumbent of x cannot be read: no front matter"), "{error}");
    let error = Tuner::new().restore(&serde_json::json!({ "targets": 3 })).unwrap_err();
    assert!(error.to_string().contains("saved state of agent `tuner`"), "{error}");
}

#[test]
fn a_verdict_on_a_text_it_never_proposed_changes_nothing() {
    let mut tuner = Tuner::new();
    let verdict = Verdict::Error { stage: Stage::Compile, why: String::new() };
    tuner.learn(&Outcome { experiment: 1, text: "?".into(), verdict, shapes: Vec::new() });
    assert_eq!(tuner, Tuner::new());
}
