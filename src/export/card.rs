//! A package in a page.

use super::{Plans, Wanted};

/// `CARD.md`.
pub(super) fn card(plans: &Plans, wanted: &Wanted<'_>) -> String {
    let it = &wanted.compiled.captured;
    let mut text = format!(
        "# {name}\n\nKernels for {model}, judged one by one against PyTorch in double precision by Warpsmith (run {run}) on {device}.\n\n\
         ```python\nimport {name}\n\n{name}.enable()               # torch.compile places them from now on\nmodel = torch.compile(model)\n\nwith torch.inference_mode():   # a graph that wants gradients is left as it is\n    model(...)\n\n\
         model = {name}.patch(model)     # or without torch.compile; {name}.unpatch(model) takes it back\n{name}.disable()              # everything as it was\n```\n\n\
         Needs torch (made with {torch}) and nothing else. What was not judged (another shape, type, stride or device, anything that requires\n\
         gradients) is computed the original way, and that is said once. `{name}.status()` tells what was placed and called.\n\n\
         | kernel | of | from | is | against | in a pass |\n|---|---|---|---|---|---|\n",
        name = plans.name,
        model = wanted.compiled.model,
        run = wanted.run,
        device = plans.device,
        torch = plans.torch,
    );
    for (plan, chosen) in plans.kernels.iter().zip(&wanted.kernels) {
        let region = chosen.region;
        text += &format!(
            "| {} | {} | {} | {:.2}x | {} | {} |\n",
            plan.name,
            region.operators.join(", "),
            region.modules.first().map_or("the model", String::as_str),
            plan.speedup,
            plan.against.as_deref().unwrap_or("its first version"),
            region.calls
        );
    }
    let mut others: Vec<&str> =
        plans.kernels.iter().flat_map(|plan| &plan.unjudged).map(|it| it.arch.as_str()).collect();
    others.sort_unstable();
    others.dedup();
    if !others.is_empty() {
        text += &format!(
            "\nFor {} too, where a kernel compiles for it. Nobody has judged these: `{}.enable(unjudged=True)` places them, and says so.\n",
            others.join(", "),
            plans.name
        );
    }
    if plans.without_lowerings {
        let ms = |us: f64| us / 1e3;
        text += &format!(
            "\nWhere it places kernels, Inductor's own patterns (such as that for products with weights of eight bits) are left out: with them a pass\n\
             took {:.3} ms without any of these kernels, and {:.3} ms without both.\n",
            ms(it.lowerings_us.unwrap_or_default()),
            ms(it.graph_us.unwrap_or(it.compiled_us))
        );
    }
    text += &format!(
        "\nBefore, on {} with {} threads of PyTorch {}: a pass took {:.3} ms eagerly and {:.3} ms compiled. What it takes with the kernels:\n\
         `warpsmith verify {} --model MODEL_DIR` measures it on your machine. `warpsmith recheck {}` judges every kernel again.\n",
        plans.device,
        it.threads,
        it.torch,
        it.eager_us / 1e3,
        it.compiled_us / 1e3,
        plans.name,
        plans.name
    );
    text
}
