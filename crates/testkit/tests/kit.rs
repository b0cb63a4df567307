//! The kit itself: all operations have cases, an executor that computes what the reference does passes, others do not.

use bessemer_ir::passes::CompileOptions;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::Rules;
use bessemer_ir::{Graph, Op};
use bessemer_testkit::{
    Backend, CASES, Case, Failure, Limit, Outcome, Refusal, Steps, Tensors, bytes_of, check, reached, values_of,
};

/// An executor that runs the reference interpreter, rounding as its own types do.
#[derive(Default)]
struct Reference {
    /// Share by which the first element of each result is too large.
    error: f64,
    refuses: bool,
    /// Whether results depend on the number of workers.
    is_unsteady: bool,
}

impl Backend for Reference {
    fn name(&self) -> String {
        "reference".to_string()
    }

    fn rules(&self) -> &Rules {
        &Rules::DEFAULT
    }

    fn run(
        &self,
        graph: &Graph,
        _: &CompileOptions,
        workers: usize,
        inputs: &Tensors,
        _: Steps,
    ) -> Result<Tensors, Refusal> {
        if self.refuses {
            return Err(Refusal::Unsupported("anything".to_string()));
        }
        let mut interpreter = Interpreter::new(graph);
        for (value, input) in graph.inputs() {
            interpreter.set(&input.name, &values_of(graph.dtype(value), &inputs[&input.name]));
        }
        interpreter.run();
        let result = |name: &String| {
            let tensor = interpreter.output(name);
            let mut data = tensor.data.clone();
            data[0] += self.error * (1.0 + data[0].abs());
            if self.is_unsteady {
                data[0] *= 1.0 + workers as f64 * 1e-6;
            }
            bytes_of(tensor.ty.dtype, &data)
        };
        Ok(graph.outputs().iter().map(|(name, _)| (name.clone(), result(name))).collect())
    }
}

fn cases(names: &[&str]) -> Vec<Case> {
    CASES.iter().copied().filter(|case| names.contains(&case.name)).collect()
}

#[test]
fn every_operation_has_a_case() {
    let reached = reached(CASES).expect("legal cases");
    let missing: Vec<&&str> = Op::VARIANTS.iter().filter(|variant| !reached.contains(**variant)).collect();
    assert!(missing.is_empty(), "operations without a case: {missing:?}");
}

#[test]
fn names_of_cases_are_unique() {
    let names: std::collections::BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
}

#[test]
fn the_reference_agrees_with_itself() {
    let chosen = cases(&["matmul", "integers above 2^24", "casts between floats and integers", "softmax"]);
    let report = check(&chosen, &[&Reference::default()], &[]).unwrap();
    assert_eq!(report.lines.len(), 6, "matmul runs in three precisions");
    assert!(report.lines.iter().all(|(.., outcome)| matches!(outcome, Outcome::Passed { .. })));
    assert!(report.to_string().contains("matmul, bf16: 10 problems on reference"), "{report}");
}

#[test]
fn errors_are_found() {
    let wrong = |name: &str, error: f64| check(&cases(&[name]), &[&Reference { error, ..Reference::default() }], &[]);
    assert!(wrong("softmax", 1e-6).is_ok());
    assert!(matches!(wrong("softmax", 1e-3), Err(Failure::Element { index: 0, .. })));
    assert!(matches!(wrong("integers above 2^24", 1e-6), Err(Failure::Element { .. })));
    assert!(matches!(wrong("conv2d with norm and relu, many rows", 1e3), Err(Failure::Norm { .. })));
    let unsteady = Reference { is_unsteady: true, ..Reference::default() };
    assert!(matches!(check(&cases(&["softmax"]), &[&unsteady], &[]), Err(Failure::Workers { .. })));
}

#[test]
fn what_is_not_supported_must_be_listed_and_what_is_listed_refused() {
    let (chosen, refusing) = (cases(&["slice and pad"]), Reference { refuses: true, ..Reference::default() });
    let limits = [Limit { what: "slices", covers: |op, _| matches!(op, Op::Slice(_)) }];
    assert!(matches!(check(&chosen, &[&refusing], &[]), Err(Failure::Refused { .. })));
    let report = check(&chosen, &[&refusing], &limits).unwrap();
    assert_eq!(report.lines[0].3, Outcome::Unsupported("slices"));
    assert!(matches!(check(&chosen, &[&Reference::default()], &limits), Err(Failure::Runs { what: "slices", .. })));
}
