//! Matrix products by cuBLASLt, with what it can do in the same pass.

use crate::driver::{Block, Context, Stream};
use crate::error::GpuError;
use crate::library::functions;
use crate::loader::{Libraries, Wanted};
use bessemer_ir::DType;
use std::borrow::Borrow;
use std::convert::Infallible;
use std::f64::consts::FRAC_2_PI;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, from_mut, from_ref};
use std::sync::Arc;

type Handle = usize;

/// `cublasLtMatmulAlgo_t`, which may be kept for the same version of the library.
pub(crate) type Words = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Heuristic {
    algorithm: Words,
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

functions!(
    /// libcublasLt.so (cublasLt.h)
    CublasLtApi {
        fn cublasLtCreate(*mut Handle) -> i32;
        fn cublasLtDestroy(Handle) -> i32;
        fn cublasLtGetStatusString(i32) -> *const c_char;
        fn cublasLtGetVersion() -> usize;
        fn cublasLtMatmulDescCreate(*mut Handle, i32, i32) -> i32;
        fn cublasLtMatmulDescSetAttribute(Handle, i32, *const c_void, usize) -> i32;
        fn cublasLtMatmulDescDestroy(Handle) -> i32;
        fn cublasLtMatrixLayoutCreate(*mut Handle, i32, u64, u64, i64) -> i32;
        fn cublasLtMatrixLayoutSetAttribute(Handle, i32, *const c_void, usize) -> i32;
        fn cublasLtMatrixLayoutDestroy(Handle) -> i32;
        fn cublasLtMatmulPreferenceCreate(*mut Handle) -> i32;
        fn cublasLtMatmulPreferenceSetAttribute(Handle, i32, *const c_void, usize) -> i32;
        fn cublasLtMatmulPreferenceDestroy(Handle) -> i32;
        fn cublasLtMatmulAlgoGetHeuristic(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut Heuristic, *mut i32
        ) -> i32;
        fn cublasLtMatmulAlgoCheck(
            Handle, Handle, Handle, Handle, Handle, Handle, *const Words, *mut Heuristic
        ) -> i32;
        fn cublasLtMatmulAlgoConfigGetAttribute(*const Words, i32, *mut c_void, usize, *mut usize) -> i32;
        fn cublasLtMatmul(
            Handle, Handle, *const c_void, u64, Handle, u64, Handle, *const c_void, u64, Handle, u64, Handle,
            *const Words, u64, usize, Handle
        ) -> i32;
    }
);

/// `CUBLAS_COMPUTE_32F`
const COMPUTE_F32: i32 = 68;
/// `CUBLAS_COMPUTE_32F_FAST_TF32`
const COMPUTE_TF32: i32 = 77;

/// `cublasLtMatmulPreferenceAttributes_t`
mod preference_attribute {
    pub(super) const MAX_WORKSPACE: i32 = 1;
    pub(super) const REDUCTION_SCHEMES: i32 = 3;
}

/// `CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME`
const REDUCTION_SCHEME: i32 = 3;
/// How parts of sums may be put together, a mask of `cublasLtReductionScheme_t`: there are none, or they lie in scratch memory in the type
/// that is computed in, `f32`, and are added behind. By the other schemes they lie in the type of the result, which 16 bits round.
const SCHEMES: u32 = 2;

/// `cublasLtMatmulDescAttributes_t`
mod attribute {
    pub(super) const POINTER_MODE: i32 = 2;
    pub(super) const TRANSPOSE_A: i32 = 3;
    pub(super) const TRANSPOSE_B: i32 = 4;
    pub(super) const EPILOGUE: i32 = 7;
    pub(super) const BIAS: i32 = 8;
    pub(super) const AUX: i32 = 11;
    pub(super) const AUX_STRIDE: i32 = 12;
    pub(super) const BIAS_TYPE: i32 = 26;
}

/// `CUBLASLT_POINTER_MODE_DEVICE`: both factors lie in the device's memory.
const FACTORS_IN_MEMORY: i32 = 1;

/// `cublasLtMatrixLayoutAttribute_t`
mod layout_attribute {
    pub(super) const BATCHES: i32 = 5;
    pub(super) const BATCH_STRIDE: i32 = 6;
}

/// `cudaDataType_t`
fn data_type(ty: DType) -> Option<i32> {
    match ty {
        DType::F32 => Some(0),
        DType::F16 => Some(2),
        DType::Bf16 => Some(14),
        DType::I32 | DType::U8 | DType::Bool => None,
    }
}

/// A code of cuBLASLt's that says that it has no way: `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 15;

/// What is done with a product and its bias, in the same pass. ReLU is not: the library's is `max(y, 0)`, which on a GPU is 0 for NaN unless it
/// is said otherwise, and the library says nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    Nothing,
    /// `y / 2 * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 y^3)))`
    Gelu,
}

/// `y = x w`, all with rows one after the other: `y` is `[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Independent products, whose matrices lie one behind the other; at least 1.
    pub batch: usize,
    /// Rows of `y`.
    pub m: usize,
    /// Columns of `y`.
    pub n: usize,
    /// The axis that is summed.
    pub k: usize,
    /// `x` is `[k, m]` instead of `[m, k]`.
    pub x_transposed: bool,
    /// `w` is `[n, k]` instead of `[k, n]`.
    pub w_transposed: bool,
    /// Type of `x` and `w`.
    pub inputs: DType,
    /// Type of `y`, biases and auxiliary memory.
    pub output: DType,
    /// Whether operands of `f32` are rounded to TF32 before they are multiplied.
    pub tf32: bool,
}

/// What is done with the product in the same pass, with the memory for it. Biases have `n` elements, `aux` is `[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue<M> {
    /// `y` as it is.
    Nothing,
    /// An activation of `y + bias`.
    Bias {
        /// `[n]`, read.
        bias: M,
        /// What becomes of the sum.
        activation: Activation,
    },
    /// `gelu(y + bias)`; `aux` becomes `y + bias`.
    GeluAuxBias {
        /// `[n]`, read.
        bias: M,
        /// `[m, n]`, written.
        aux: M,
    },
    /// `y * gelu'(aux)`
    GeluGrad {
        /// `[m, n]`, read.
        aux: M,
    },
    /// `y * gelu'(aux)`; `bias` becomes its sums over rows.
    GeluGradBiasGrad {
        /// `[n]`, written.
        bias: M,
        /// `[m, n]`, read.
        aux: M,
    },
    /// `factor * y + kept * sum`; the sum is not read where `kept` is 0, and may lie where the result does.
    Added {
        /// `f32[]`, read.
        factor: M,
        /// `f32[]`, read.
        kept: M,
        /// `[m, n]`, read.
        sum: M,
    },
}

impl Activation {
    /// Of a number.
    pub(crate) fn of(self, y: f64) -> f64 {
        match self {
            Activation::Nothing => y,
            Activation::Gelu => y / 2.0 * (1.0 + tanh_of_gelu(y)),
        }
    }

    /// `cublasLtEpilogue_t` of it behind a bias.
    fn code(self) -> i32 {
        match self {
            Activation::Nothing => 4,
            Activation::Gelu => 36,
        }
    }
}

fn tanh_of_gelu(x: f64) -> f64 {
    (FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh()
}

/// The derivative of [`Activation::Gelu`].
pub(crate) fn gelu_slope(x: f64) -> f64 {
    let tanh = tanh_of_gelu(x);
    let inner = FRAC_2_PI.sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
    (1.0 + tanh) / 2.0 + x / 2.0 * (1.0 - tanh * tanh) * inner
}

impl<M> Epilogue<M> {
    /// `cublasLtEpilogue_t`
    fn code(&self) -> i32 {
        match self {
            Epilogue::Nothing | Epilogue::Added { .. } => 1,
            Epilogue::Bias { activation, .. } => activation.code(),
            Epilogue::GeluAuxBias { .. } => 164,
            Epilogue::GeluGrad { .. } => 192,
            Epilogue::GeluGradBiasGrad { .. } => 208,
        }
    }

    fn bias(&self) -> Option<&M> {
        match self {
            Epilogue::Nothing | Epilogue::GeluGrad { .. } | Epilogue::Added { .. } => None,
            Epilogue::Bias { bias, .. }
            | Epilogue::GeluAuxBias { bias, .. }
            | Epilogue::GeluGradBiasGrad { bias, .. } => Some(bias),
        }
    }

    fn aux(&self) -> Option<&M> {
        match self {
            Epilogue::GeluAuxBias { aux, .. } | Epilogue::GeluGrad { aux } | Epilogue::GeluGradBiasGrad { aux, .. } => {
                Some(aux)
            }
            Epilogue::Nothing | Epilogue::Bias { .. } | Epilogue::Added { .. } => None,
        }
    }

    /// Factor, what is kept, and the sum.
    fn added(&self) -> Option<[&M; 3]> {
        match self {
            Epilogue::Added { factor, kept, sum } => Some([factor, kept, sum]),
            _ => None,
        }
    }

    /// The same without its memory.
    pub(crate) fn kind(&self) -> Epilogue<()> {
        let Ok(kind) = self.with(|_| Ok::<(), Infallible>(()));
        kind
    }

    /// What is done, in words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Epilogue::Nothing => "alone",
            Epilogue::Bias { activation: Activation::Nothing, .. } => "bias",
            Epilogue::Bias { activation: Activation::Gelu, .. } => "bias, GELU",
            Epilogue::GeluAuxBias { .. } => "bias, GELU, the sum kept",
            Epilogue::GeluGrad { .. } => "gradient of GELU",
            Epilogue::GeluGradBiasGrad { .. } => "gradients of GELU and bias",
            Epilogue::Added { .. } => "added to a sum",
        }
    }

    /// All of its memory, and whether it is written.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (&M, bool)> {
        let writes_bias = matches!(self, Epilogue::GeluGradBiasGrad { .. });
        let writes_aux = matches!(self, Epilogue::GeluAuxBias { .. });
        let bias = self.bias().map(|bias| (bias, writes_bias));
        let aux = self.aux().map(|aux| (aux, writes_aux));
        bias.into_iter().chain(aux).chain(self.added().into_iter().flatten().map(|added| (added, false)))
    }

    /// The same with its memory in another form.
    ///
    /// # Errors
    /// Those of `to`.
    pub(crate) fn with<N, E>(&self, mut to: impl FnMut(&M) -> Result<N, E>) -> Result<Epilogue<N>, E> {
        Ok(match self {
            Epilogue::Nothing => Epilogue::Nothing,
            Epilogue::Bias { bias, activation } => Epilogue::Bias { bias: to(bias)?, activation: *activation },
            Epilogue::GeluAuxBias { bias, aux } => Epilogue::GeluAuxBias { bias: to(bias)?, aux: to(aux)? },
            Epilogue::GeluGrad { aux } => Epilogue::GeluGrad { aux: to(aux)? },
            Epilogue::GeluGradBiasGrad { bias, aux } => Epilogue::GeluGradBiasGrad { bias: to(bias)?, aux: to(aux)? },
            Epilogue::Added { factor, kept, sum } => {
                Epilogue::Added { factor: to(factor)?, kept: to(kept)?, sum: to(sum)? }
            }
        })
    }
}

impl Product {
    /// Bytes of `x`, of `w` and of `y`.
    pub(crate) fn bytes(&self) -> [usize; 3] {
        let Product { batch, m, n, k, inputs, output, .. } = *self;
        [m * k * inputs.size(), k * n * inputs.size(), m * n * output.size()].map(|bytes| batch * bytes)
    }

    /// Its sizes and types, in words.
    pub(crate) fn name(&self) -> String {
        let Product { batch, m, n, k, x_transposed, w_transposed, inputs, output, tf32 } = *self;
        let transposed = |is: bool| if is { " transposed" } else { "" };
        let several = if batch > 1 { format!("{batch} times ") } else { String::new() };
        let inputs = if tf32 && inputs == DType::F32 { "tf32" } else { inputs.name() };
        format!(
            "{several}[{m}, {k}]{} [{k}, {n}]{}, {inputs} to {}",
            transposed(x_transposed),
            transposed(w_transposed),
            output.name()
        )
    }

    /// FLOPs, a multiply-add counted as two.
    pub(crate) fn flops(&self) -> u64 {
        (2 * self.batch * self.m * self.n * self.k) as u64
    }
}

/// A way to do a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    words: Words,
    workspace: usize,
}

impl Algorithm {
    /// What may be kept of it.
    pub(crate) fn words(&self) -> Words {
        self.words
    }
}

/// Memory that a product reads and writes.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// The first operand, read.
    pub x: &'a Block,
    /// The second operand, read.
    pub w: &'a Block,
    /// The result, written.
    pub y: &'a Block,
    /// Scratch memory; its size limits which algorithms are offered.
    pub workspace: &'a Block,
}

/// cuBLASLt, opened for a device.
pub struct CublasLt {
    api: CublasLtApi,
    handle: Handle,
    context: Context,
}

impl CublasLt {
    /// Opens the library for the device of `context`.
    ///
    /// # Errors
    /// It was not found, cannot be opened, or does not start.
    pub fn open(libraries: &Libraries, context: &Context) -> Result<Arc<CublasLt>, GpuError> {
        let api = CublasLtApi::load(&libraries.require(Wanted::CublasLt)?.path)?;
        context.bind()?;
        let mut library = CublasLt { api, handle: 0, context: context.clone() };
        // SAFETY: the pointer is to a local handle.
        let code = unsafe { (library.api.cublasLtCreate)(&mut library.handle) };
        library.check("cublasLtCreate", code)?;
        Ok(Arc::new(library))
    }

    /// With its version, as in files of choices.
    pub(crate) fn named(&self) -> String {
        // SAFETY: takes nothing, and returns a number.
        let version = unsafe { (self.api.cublasLtGetVersion)() };
        format!("cuBLASLt {version}")
    }

    /// At most `most` algorithms for a product that need no more than so many bytes of scratch memory, the heuristics' first one first;
    /// none where the library has no way to do what is done with the product.
    ///
    /// # Errors
    /// cuBLASLt refuses to say.
    pub(crate) fn algorithms<M>(
        self: &Arc<Self>,
        product: &Product,
        epilogue: &Epilogue<M>,
        workspace: usize,
        most: usize,
    ) -> Result<Vec<Algorithm>, GpuError> {
        match self.somewhere(product, epilogue)?.algorithms(workspace, most) {
            Err(GpuError::Call { code: NOT_SUPPORTED, .. }) => Ok(Vec::new()),
            algorithms => algorithms,
        }
    }

    /// An algorithm that was kept, if the library still takes it for the product, with no more than so many bytes of scratch memory.
    ///
    /// # Errors
    /// cuBLASLt refuses to describe the product.
    pub(crate) fn kept<M>(
        self: &Arc<Self>,
        product: &Product,
        epilogue: &Epilogue<M>,
        words: Words,
        workspace: usize,
    ) -> Result<Option<Algorithm>, GpuError> {
        let described = self.somewhere(product, epilogue)?;
        Ok(described.check(words).filter(|algorithm| algorithm.workspace <= workspace))
    }

    /// Prepares a product that is done by any of the heuristics' first algorithms, `most` of them or fewer.
    ///
    /// # Errors
    /// A block is too small, or cuBLASLt has no way.
    pub fn prepare<M: Borrow<Block>>(
        self: &Arc<Self>,
        product: Product,
        operands: Operands<'_>,
        epilogue: Epilogue<M>,
        most: usize,
    ) -> Result<Prepared, GpuError> {
        let algorithms = self.algorithms(&product, &epilogue, operands.workspace.bytes(), most)?;
        self.prepare_by(algorithms, product, operands, epilogue)
    }

    /// Prepares a product that is done by any of these algorithms.
    ///
    /// # Errors
    /// A block is too small, there is no algorithm, or cuBLASLt refuses.
    pub(crate) fn prepare_by<M: Borrow<Block>>(
        self: &Arc<Self>,
        algorithms: Vec<Algorithm>,
        product: Product,
        operands: Operands<'_>,
        epilogue: Epilogue<M>,
    ) -> Result<Prepared, GpuError> {
        check_sizes(&product, &operands, &epilogue, &algorithms).map_err(refused)?;
        let described = self.describe(&product, &epilogue)?;
        let address = |block: &M| block.borrow().address();
        described.set_addresses(&product, epilogue.bias().map(address), epilogue.aux().map(address))?;
        let Operands { x, w, y, workspace } = operands;
        let epilogue = epilogue.with(|block| Ok::<Block, GpuError>(block.borrow().clone()))?;
        Ok(Prepared { blocks: [x, w, y, workspace].map(Clone::clone), epilogue, described, algorithms })
    }

    /// A product whose memory is not known yet: any address but 0 stands for it.
    fn somewhere<M>(self: &Arc<Self>, product: &Product, epilogue: &Epilogue<M>) -> Result<Described, GpuError> {
        let somewhere = |_: &M| 256;
        let described = self.describe(product, epilogue)?;
        described.set_addresses(product, epilogue.bias().map(somewhere), epilogue.aux().map(somewhere))?;
        Ok(described)
    }

    /// # Errors
    /// A type of no floats, or cuBLASLt refuses.
    fn describe<M>(self: &Arc<Self>, product: &Product, epilogue: &Epilogue<M>) -> Result<Described, GpuError> {
        let types = data_type(product.inputs).zip(data_type(product.output));
        let (input, output) = types.ok_or_else(|| refused("takes floats only".to_owned()))?;
        let Product { batch, m, n, k, x_transposed, w_transposed, .. } = *product;
        let compute = if product.tf32 && product.inputs == DType::F32 { COMPUTE_TF32 } else { COMPUTE_F32 };
        // cuBLASLt is column-major: it is given the transpose of everything, w before x.
        let description = Owned::new(self, "cublasLtMatmulDescCreate", self.api.cublasLtMatmulDescDestroy, |made| {
            // SAFETY: the pointer is to a local handle.
            unsafe { (self.api.cublasLtMatmulDescCreate)(made, compute, 0) }
        })?;
        let layout = |ty, rows: usize, cols: usize| {
            let made = Owned::new(self, "cublasLtMatrixLayoutCreate", self.api.cublasLtMatrixLayoutDestroy, |made| {
                // SAFETY: the pointer is to a local handle.
                unsafe { (self.api.cublasLtMatrixLayoutCreate)(made, ty, rows as u64, cols as u64, rows as i64) }
            })?;
            if batch > 1 {
                self.set_layout(&made, layout_attribute::BATCHES, batch as i32)?;
                self.set_layout(&made, layout_attribute::BATCH_STRIDE, (rows * cols) as i64)?;
            }
            Ok::<_, GpuError>(made)
        };
        let a = if w_transposed { layout(input, k, n)? } else { layout(input, n, k)? };
        let b = if x_transposed { layout(input, m, k)? } else { layout(input, k, m)? };
        let layouts = [a, b, layout(output, n, m)?];
        let described = Described { library: Arc::clone(self), description, layouts };
        described.set(attribute::TRANSPOSE_A, i32::from(w_transposed))?;
        described.set(attribute::TRANSPOSE_B, i32::from(x_transposed))?;
        described.set(attribute::EPILOGUE, epilogue.code())?;
        if epilogue.added().is_some() {
            described.set(attribute::POINTER_MODE, FACTORS_IN_MEMORY)?;
        }
        Ok(described)
    }

    fn set_layout<T: Copy>(&self, layout: &Owned, attribute: i32, value: T) -> Result<(), GpuError> {
        let (set, pointer) = (self.api.cublasLtMatrixLayoutSetAttribute, from_ref(&value).cast());
        // SAFETY: the pointer is to a local value of the size given, which is that of the attribute.
        let code = unsafe { set(layout.handle, attribute, pointer, size_of::<T>()) };
        self.check("cublasLtMatrixLayoutSetAttribute", code)
    }

    fn prefer<T: Copy>(&self, preference: &Owned, attribute: i32, value: T) -> Result<(), GpuError> {
        let (set, pointer) = (self.api.cublasLtMatmulPreferenceSetAttribute, from_ref(&value).cast());
        // SAFETY: the pointer is to a local value of the size given, which is that of the attribute.
        let code = unsafe { set(preference.handle, attribute, pointer, size_of::<T>()) };
        self.check("cublasLtMatmulPreferenceSetAttribute", code)
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a constant text.
        let text = unsafe { (self.api.cublasLtGetStatusString)(code) };
        let meaning = if text.is_null() {
            "a code that cuBLASLt does not explain".to_owned()
        } else {
            // SAFETY: the text ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(GpuError::Call { call, code, meaning })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.handle != 0 && self.context.is_alive().is_ok() {
            // SAFETY: the handle was created once and is used no more.
            unsafe { (self.api.cublasLtDestroy)(self.handle) };
        }
    }
}

fn refused(problem: String) -> GpuError {
    GpuError::Launch { kernel: "cublasLtMatmul".to_owned(), problem }
}

fn check_sizes<M: Borrow<Block>>(
    product: &Product,
    operands: &Operands<'_>,
    epilogue: &Epilogue<M>,
    algorithms: &[Algorithm],
) -> Result<(), String> {
    let [x, w, y] = product.bytes();
    let Some(scratch) = algorithms.iter().map(|algorithm| algorithm.workspace).max() else {
        return Err(format!("there is no algorithm for {}, {}", product.name(), epilogue.name()));
    };
    let mut needed = vec![
        ("x", operands.x, x),
        ("w", operands.w, w),
        ("y", operands.y, y),
        ("the scratch memory", operands.workspace, scratch),
    ];
    needed.extend(epilogue.bias().map(|bias| ("the bias", bias.borrow(), product.n * product.output.size())));
    needed.extend(epilogue.aux().map(|aux| ("the auxiliary memory", aux.borrow(), y)));
    if let Some([factor, kept, sum]) = epilogue.added() {
        let number = DType::F32.size();
        needed.extend([("the factor", factor.borrow(), number), ("what is kept", kept.borrow(), number)]);
        needed.push(("the sum", sum.borrow(), y));
    }
    if product.batch > 1 && !matches!(epilogue, Epilogue::Nothing) {
        return Err("takes no epilogue for several products".to_owned());
    }
    match needed.into_iter().find(|(_, block, bytes)| block.bytes() < *bytes) {
        Some((name, block, bytes)) => Err(format!("{name} takes {bytes} bytes, {} are given", block.bytes())),
        None => Ok(()),
    }
}

/// Something of cuBLASLt's that is released in the end.
struct Owned {
    handle: Handle,
    context: Context,
    destroy: unsafe extern "C" fn(Handle) -> i32,
}

impl Owned {
    fn new(
        library: &CublasLt,
        call: &'static str,
        destroy: unsafe extern "C" fn(Handle) -> i32,
        create: impl FnOnce(*mut Handle) -> i32,
    ) -> Result<Owned, GpuError> {
        let mut handle = 0;
        library.check(call, create(&mut handle))?;
        Ok(Owned { handle, context: library.context.clone(), destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.context.is_alive().is_ok() {
            // SAFETY: the handle was created once and is used no more.
            unsafe { (self.destroy)(self.handle) };
        }
    }
}

/// A product as cuBLASLt knows it.
struct Described {
    library: Arc<CublasLt>,
    description: Owned,
    /// Of `w`, `x` and `y`.
    layouts: [Owned; 3],
}

/// A product with its memory and the algorithms that do it.
pub struct Prepared {
    described: Described,
    /// `x`, `w`, `y` and the workspace.
    blocks: [Block; 4],
    epilogue: Epilogue<Block>,
    algorithms: Vec<Algorithm>,
}

impl Described {
    fn set_addresses(&self, product: &Product, bias: Option<u64>, aux: Option<u64>) -> Result<(), GpuError> {
        if let Some(address) = bias {
            self.set(attribute::BIAS, address)?;
            self.set(attribute::BIAS_TYPE, data_type(product.output).unwrap_or_default())?;
        }
        if let Some(address) = aux {
            self.set(attribute::AUX, address)?;
            self.set(attribute::AUX_STRIDE, product.n as i64)?;
        }
        Ok(())
    }

    fn set<T: Copy>(&self, attribute: i32, value: T) -> Result<(), GpuError> {
        let (api, pointer) = (&self.library.api, from_ref(&value).cast());
        // SAFETY: the pointer is to a local value of the size given, which is that of the attribute.
        let code = unsafe {
            (api.cublasLtMatmulDescSetAttribute)(self.description.handle, attribute, pointer, size_of::<T>())
        };
        self.library.check("cublasLtMatmulDescSetAttribute", code)
    }

    /// An algorithm of these words, if it does this product, and adds in `f32`.
    fn check(&self, words: Words) -> Option<Algorithm> {
        let [a, b, d] = [0, 1, 2].map(|i: usize| self.layouts[i].handle);
        let (library, mut found) = (&self.library, Heuristic::default());
        let check = library.api.cublasLtMatmulAlgoCheck;
        // SAFETY: both pointers are to local values of their types; the handles are valid.
        let code = unsafe { check(library.handle, self.description.handle, a, b, d, d, &words, &mut found) };
        (code == 0 && found.state == 0 && self.adds_in_f32(&words))
            .then_some(Algorithm { words, workspace: found.workspace })
    }

    /// Whether the library says of an algorithm that it puts parts of sums together as is [allowed](SCHEMES).
    fn adds_in_f32(&self, words: &Words) -> bool {
        let (mut scheme, mut written) = (u32::MAX, 0);
        let get = self.library.api.cublasLtMatmulAlgoConfigGetAttribute;
        let to = from_mut(&mut scheme).cast();
        // SAFETY: the pointers are to local values, of the size given, which is that of the attribute.
        let code = unsafe { get(words, REDUCTION_SCHEME, to, size_of::<u32>(), &mut written) };
        code == 0 && scheme & !SCHEMES == 0
    }

    /// At most `most` algorithms, the heuristics' first one first.
    fn algorithms(&self, workspace: usize, most: usize) -> Result<Vec<Algorithm>, GpuError> {
        let library = &self.library;
        let api = &library.api;
        let create = api.cublasLtMatmulPreferenceCreate;
        let preference =
            Owned::new(library, "cublasLtMatmulPreferenceCreate", api.cublasLtMatmulPreferenceDestroy, |made| {
                // SAFETY: the pointer is to a local handle.
                unsafe { create(made) }
            })?;
        let workspace = workspace as u64;
        library.prefer(&preference, preference_attribute::MAX_WORKSPACE, workspace)?;
        library.prefer(&preference, preference_attribute::REDUCTION_SCHEMES, SCHEMES)?;
        let [a, b, d] = [0, 1, 2].map(|i: usize| self.layouts[i].handle);
        let (mut found, mut count) = (vec![Heuristic::default(); most], 0);
        // SAFETY: there is room for `most` results.
        let code = unsafe {
            (api.cublasLtMatmulAlgoGetHeuristic)(
                library.handle,
                self.description.handle,
                a,
                b,
                d,
                d,
                preference.handle,
                most as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        library.check("cublasLtMatmulAlgoGetHeuristic", code)?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        let usable = found.iter().filter(|found| found.state == 0 && found.workspace as u64 <= workspace);
        Ok(usable.map(|found| Algorithm { words: found.algorithm, workspace: found.workspace }).collect())
    }
}

impl Prepared {
    /// Its memory but for scratch, and whether it writes it.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (Block, bool)> {
        let [x, w, y, _workspace] = &self.blocks;
        let own = [(x, false), (w, false), (y, true)].into_iter().chain(self.epilogue.memory());
        own.map(|(block, is_written)| (block.clone(), is_written))
    }

    /// How many algorithms it has.
    pub fn algorithms(&self) -> usize {
        self.algorithms.len()
    }

    /// Does the product, some time, by the algorithm of this number.
    ///
    /// # Errors
    /// cuBLASLt refuses.
    pub fn launch(&self, stream: &Stream, algorithm: usize) -> Result<(), GpuError> {
        let (Described { library, description, layouts }, [x, w, y, workspace]) = (&self.described, &self.blocks);
        let [a, b, d] = [0, 1, 2].map(|i: usize| layouts[i].handle);
        let (one, zero) = (1f32, 0f32);
        let in_memory = |block: &Block| ptr::with_exposed_provenance(block.address() as usize);
        let (factor, kept, sum) = match self.epilogue.added() {
            Some([factor, kept, sum]) => (in_memory(factor), in_memory(kept), sum),
            None => (from_ref(&one).cast(), from_ref(&zero).cast(), y),
        };
        library.context.bind()?;
        for block in self.blocks.iter().chain(self.epilogue.memory().map(|(block, _)| block)) {
            stream.keep_block(block);
        }
        // SAFETY: blocks were found to be large enough, scales are of the type described, handles are valid.
        let code = unsafe {
            (library.api.cublasLtMatmul)(
                library.handle,
                description.handle,
                factor,
                w.address(),
                a,
                x.address(),
                b,
                kept,
                sum.address(),
                d,
                y.address(),
                d,
                &self.algorithms[algorithm].words,
                workspace.address(),
                workspace.bytes(),
                stream.raw(),
            )
        };
        library.check("cublasLtMatmul", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_sizes_and_types() {
        let product = Product {
            batch: 1,
            m: 2,
            n: 4,
            k: 3,
            x_transposed: false,
            w_transposed: true,
            inputs: DType::Bf16,
            output: DType::F32,
            tf32: false,
        };
        assert_eq!(product.name(), "[2, 3] [3, 4] transposed, bf16 to f32");
        let several = Product { batch: 8, x_transposed: true, inputs: DType::F32, tf32: true, ..product };
        assert_eq!(several.name(), "8 times [2, 3] transposed [3, 4] transposed, tf32 to f32");
    }
}
