//! Random networks by the reference alone: what passes make of them, and their gradients.

use bessemer_ir::DType;
use bessemer_ir::rules::Rules;
use bessemer_testkit::check_networks;

#[test]
fn passes_keep_results() {
    let result = check_networks(0..10, |network, options| {
        network.check_passes(&Rules::DEFAULT, options)?;
        network.check_passes(&network.rules(), options)
    });
    result.unwrap_or_else(|failures| panic!("{failures}"));
}

#[test]
fn gradients_are_those_of_central_differences() {
    let result = check_networks(0..20, |network, options| match options.precision {
        DType::F32 => network.check_gradients(),
        _ => Ok(()),
    });
    result.unwrap_or_else(|failures| panic!("{failures}"));
}
