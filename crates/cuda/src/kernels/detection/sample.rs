//! Samples of candidates, which are sorted by kind, key and position, and lists of chosen rows.

use super::{Work, counts, for_each, input, output};
use crate::kernels::sort::sort;
use crate::kgen::{Operand, Parameter};
use bessemer_ir::TensorType;
use bessemer_ir::ops::OpError;
use bessemer_ir::ops::detection::matching::NEGATIVE;
use bessemer_ir::ops::detection::sample::{
    NEGATIVE_ROW, NOT_SAMPLED, PADDING_ROW, POSITIVE_ROW, PackRows, SampleFill, SampleLabels, SampleOrder, SampleRows,
    Sampler,
};

/// Bits of a key below its kind and its random word: the position of a candidate in its image.
const POSITION_BITS: usize = 30;
/// Neighbouring flags that one thread counts.
const CHUNK: usize = 128;

/// Of kind 0 are positives, of kind 1 negatives, of kind 2 what is never chosen.
const KEYS: &str = "\
const int value = candidates[i];
const u64 kind = value >= LEAST_POSITIVE ? 0u : value == LEAST_POSITIVE - 1 ? 1u : 2u;
((u64*)keys)[i] = kind << 62 | (u64)word << POSITION_BITS | i % N;
";

/// How many keys of the image are of kind 0, and of kinds 0 and 1.
const BOUNDS: &str = "\
const u64* const own = (const u64*)keys + i / 2u * N;
u32 low = 0, high = N;
while (low < high) {
    const u32 half = low + (high - low) / 2u;
    if (own[half] >> 62 <= i % 2u) low = half + 1u;
    else high = half;
}
bounds[i] = (int)low;
";

/// The chosen ones among the sorted candidates of the image `b`: `first` positives from the start, `second` negatives behind all
/// positives.
const CHOSEN: &str = "\
const u64* const own = (const u64*)keys + b * N;
const auto at_slot = [=](u32 slot) { return (u32)own[slot] & ((1u << POSITION_BITS) - 1u); };
const u32 positives = (u32)bounds[2u * b], negatives = (u32)bounds[2u * b + 1u] - positives;
const u32 first = positives < MOST_POSITIVES ? positives : MOST_POSITIVES;
const u32 second = negatives < TOTAL - first ? negatives : TOTAL - first;
";

const IS_CHOSEN: &str = "\
const u32 slot = i % N, at = at_slot(slot);
const bool is_chosen = slot < first || (slot >= positives && slot < positives + second);
";

/// Behind the chosen candidates follow, if they are wanted, those that are not, by position.
const ROWS: &str = "\
const u32 slot = i % TOTAL;
int row = -1;
if (slot < first) row = (int)at_slot(slot);
else if (slot < first + second) row = (int)at_slot(positives + slot - first);
";

const REST: &str = "\
u32 before = slot - first - second;
for (u32 at = 0; at < N && row < 0; ++at)
    if (!chosen[b * N + at] && before-- == 0u) row = (int)at;
";

const KINDS: &str = "\
rows[i] = row < 0 ? 0 : row;
kinds[i] = row < 0 ? PADDING : candidates[b * N + (u32)row] >= LEAST_POSITIVE ? POSITIVE : NEGATIVE;
";

const KIND_COUNTS: &str = "\
const int kind = i % 2u == 0u ? POSITIVE : NEGATIVE;
int count = 0;
for (u32 slot = 0; slot < TOTAL; ++slot) count += kinds[i / 2u * TOTAL + slot] == kind;
counts[i] = count;
";

/// Candidates sorted by kind, and what follows from their numbers.
struct Sorted {
    batch: usize,
    n: usize,
    keys: Operand,
    bounds: Operand,
    /// Constants of the texts.
    constants: String,
}

impl Sorted {
    /// The sorted candidates of an image, positives being those of at least `least_positive`, negatives those one below it.
    ///
    /// # Errors
    /// There are more candidates than a key counts.
    fn new(
        work: &mut Work,
        sampler: &Sampler,
        candidates: &TensorType,
        least_positive: i32,
    ) -> Result<Sorted, OpError> {
        let [batch, n] = [candidates.shape[0], candidates.shape[1]];
        if n > 1 << POSITION_BITS {
            return Err(OpError::Sizes(format!("an image has more candidates than {POSITION_BITS} bits count")));
        }
        let constants = format!("const int LEAST_POSITIVE = {least_positive};\n")
            + &counts(&[("N", n), ("POSITION_BITS", POSITION_BITS), ("TOTAL", sampler.total)])
            + &counts(&[("MOST_POSITIVES", sampler.most_positives)]);
        let keys = work.scratch(2 * batch * n);
        let (mut parameters, mut operands) = (vec![input("candidates", batch * n)], vec![Operand::Input(0)]);
        let word = match sampler.order {
            SampleOrder::First => "const u32 word = 0u;\n".to_owned(),
            SampleOrder::Random { seed, stream } => {
                parameters.extend([input("step", 1), Parameter::Number { name: "stream".into(), value: stream }]);
                operands.push(Operand::Input(1));
                format!(
                    "u32 words[4];\n\
                     random_words({seed}ull, (u32)step[0], stream, i / 4u, words);\n\
                     const u32 word = i % 4u == 0u ? words[0] : i % 4u == 1u ? words[1] : i % 4u == 2u ? words[2] : words[3];\n"
                )
            }
        };
        parameters.push(output("keys", 2 * batch * n));
        operands.push(keys);
        let text = constants.clone() + &word + KEYS;
        work.launch(for_each("sample_keys", parameters, batch * n, &text), operands);
        let keys = sort(work, keys, batch, n);
        let bounds = work.scratch(2 * batch);
        let parameters = vec![input("keys", 2 * batch * n), output("bounds", 2 * batch)];
        let kernel = for_each("sample_bounds", parameters, 2 * batch, &(constants.clone() + BOUNDS));
        work.launch(kernel, [keys, bounds]);
        Ok(Sorted { batch, n, keys, bounds, constants })
    }

    fn count(&self) -> usize {
        self.batch * self.n
    }

    /// A launch that reads the candidates and these: `text` for each of `count`, `each` to an image.
    fn launch(
        &self,
        work: &mut Work,
        name: &str,
        [count, each]: [usize; 2],
        text: &str,
        more: Vec<(Parameter, Operand)>,
    ) {
        let own = [
            (input("candidates", self.count()), Operand::Input(0)),
            (input("keys", 2 * self.count()), self.keys),
            (input("bounds", 2 * self.batch), self.bounds),
        ];
        let (parameters, operands): (Vec<Parameter>, Vec<Operand>) = own.into_iter().chain(more).unzip();
        let text = self.constants.clone() + &format!("const u32 b = i / {each}u;\n") + CHOSEN + text;
        work.launch(for_each(name, parameters, count, &text), operands);
    }
}

/// # Errors
/// There are too many candidates.
pub(crate) fn labels(op: &SampleLabels, labels: &TensorType) -> Result<Work, OpError> {
    let mut work = Work::new("sample by a sort", 1);
    let sorted = Sorted::new(&mut work, &op.sampler, labels, 1)?;
    let text =
        IS_CHOSEN.to_owned() + &format!("sampled[b * N + at] = is_chosen ? candidates[b * N + at] : {NOT_SAMPLED};\n");
    let sampled = (output("sampled", sorted.count()), Operand::Output(0));
    sorted.launch(&mut work, "sample_labels", [sorted.count(), sorted.n], &text, vec![sampled]);
    Ok(work)
}

/// # Errors
/// There are too many candidates.
pub(crate) fn rows(op: &SampleRows, matches: &TensorType) -> Result<Work, OpError> {
    let mut work = Work::new("sample by a sort", 3);
    let sorted = Sorted::new(&mut work, &op.sampler, matches, NEGATIVE + 1)?;
    let (batch, total) = (sorted.batch, op.sampler.total);
    let kinds = format!("const int POSITIVE = {POSITIVE_ROW}, NEGATIVE = {NEGATIVE_ROW}, PADDING = {PADDING_ROW};\n");
    let mut more = Vec::new();
    let mut text = kinds.clone() + ROWS;
    if op.fill == SampleFill::Rest {
        let chosen = work.scratch(sorted.count());
        let mark = IS_CHOSEN.to_owned() + "chosen[b * N + at] = is_chosen;\n";
        let marked = vec![(output("chosen", sorted.count()), chosen)];
        sorted.launch(&mut work, "sample_marks", [sorted.count(), sorted.n], &mark, marked);
        more.push((input("chosen", sorted.count()), chosen));
        text += REST;
    }
    text += KINDS;
    more.push((output("rows", batch * total), Operand::Output(0)));
    more.push((output("kinds", batch * total), Operand::Output(1)));
    sorted.launch(&mut work, "sample_rows", [batch * total, total], &text, more);
    let parameters = vec![input("kinds", batch * total), output("counts", 2 * batch)];
    let text = sorted.constants + &kinds + KIND_COUNTS;
    let kernel = for_each("sample_counts", parameters, 2 * batch, &text);
    work.launch(kernel, [Operand::Output(1), Operand::Output(2)]);
    Ok(work)
}

const COUNT_FLAGS: &str = "\
int count = 0;
for (u32 at = i * CHUNK; at < (i + 1u) * CHUNK && at < ROWS; ++at) count += flags[at] > 0;
found[i] = count;
";

/// Behind those of the chunks before; the last chunk knows how many there are.
const PACK: &str = "\
u32 slot = 0;
for (u32 chunk = 0; chunk < i; ++chunk) slot += (u32)found[chunk];
for (u32 at = i * CHUNK; at < (i + 1u) * CHUNK && at < ROWS; ++at) {
    if (flags[at] <= 0) continue;
    if (slot < CAPACITY) {
        images[slot] = (int)(at / COLUMNS);
        rows[slot] = (int)at;
    }
    ++slot;
}
if (i == CHUNKS - 1u) count[0] = (int)(slot < CAPACITY ? slot : CAPACITY);
";

pub(crate) fn pack(op: &PackRows, flags: &TensorType) -> Work {
    let mut work = Work::new("list of chosen rows", 3);
    let (count, capacity) = (flags.shape.elements(), op.capacity);
    let chunks = count.div_ceil(CHUNK);
    let constants = counts(&[("ROWS", count), ("COLUMNS", flags.shape[1]), ("CAPACITY", capacity)])
        + &counts(&[("CHUNK", CHUNK), ("CHUNKS", chunks)]);
    let (flags, found) = (Operand::Input(0), work.scratch(chunks));
    let parameters = vec![input("flags", count), output("found", chunks)];
    work.launch(for_each("count_flags", parameters, chunks, &(constants.clone() + COUNT_FLAGS)), [flags, found]);
    let [images, rows] = [Operand::Output(0), Operand::Output(1)];
    work.fill(images, capacity, 0);
    work.fill(rows, capacity, 0);
    let mut parameters = vec![input("flags", count), input("found", chunks)];
    parameters.extend(["images", "rows"].map(|name| output(name, capacity)));
    parameters.push(output("count", 1));
    let kernel = for_each("pack_rows", parameters, chunks, &(constants + PACK));
    work.launch(kernel, [flags, found, images, rows, Operand::Output(2)]);
    work
}
