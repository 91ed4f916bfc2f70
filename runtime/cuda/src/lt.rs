//! cuBLASLt: matrix products with the library's epilogues.
//!
//! In: a [`Product`] in row-major terms. Out: [`Matmul`]s that can be launched, the library's best
//! guess first. Invariant: descriptors live as long as the [`Matmul`] that uses them; f32 means
//! f32, and TF32 only on request; the library's heuristics decide what is supported, not a table.
//!
//! cuBLASLt is column-major. A row-major `C = A B` is its `C^T = B^T A^T`, so our B is its A. A
//! bias with one element per column of ours runs along its rows, as its epilogue requires. Source:
//! cuBLAS documentation, cublasLtMatmul.

mod split_sum;

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::size_of;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;
use hypatia_dsl::dtype::DType;
use hypatia_target::cublaslt::Epilogue;

use self::split_sum::SplitSum;
use super::memory::bind;
use hypatia_tensor::error::{Error, Result};

/// The library's handle.
pub struct Lt {
    handle: sys::cublasLtHandle_t,
    /// Cached answers of the heuristics, by product and number of requested algorithms. A model
    /// repeats each product in every layer.
    answers: Mutex<HashMap<(Product, usize), Vec<Algorithm>>>,
}

// SAFETY: a cuBLASLt handle may be used by several threads at once (cuBLAS documentation, "Thread
// Safety").
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

/// The rows of a product for which an algorithm is chosen that serves any number of them: the first
/// for which the library names one that divides no sum. And how many it is asked for.
const USUAL_ROWS: [usize; 3] = [512, 4096, 32_768];
const PINNED_FROM: usize = 32;

/// The first cuBLASLt version that supports batches as lists of addresses (pointer arrays).
pub const ADDRESSES_FROM: usize = 120_900;

/// A matrix operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// True for column-major storage, false for row-major.
    pub transposed: bool,
    /// Leading dimension: elements from one row (or column) to the next.
    pub ld: i64,
    /// Elements from one matrix of the batch to the next; 0 if all share one matrix.
    pub batch_stride: i64,
    /// Elements from one batch to the next, if there are several.
    pub outer_stride: i64,
    /// Alignment of the address in bytes.
    pub alignment: u32,
}

/// `D = epilogue(A B)`: A is `m x k`, B `k x n`, D `m x n`. Several batches become one call whose
/// operands are lists of matrix addresses, since the library supports only one batch stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Number of products in a batch.
    pub batch: usize,
    /// Number of batches.
    pub outer: usize,
    /// Element type of A and B.
    pub dtype: DType,
    /// Element type of D.
    pub out: DType,
    /// True to allow rounding f32 operands to TF32.
    pub tf32: bool,
    /// A.
    pub a: Layout,
    /// B.
    pub b: Layout,
    /// D, which is row-major.
    pub d: Layout,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Element type of the bias, or of its gradient.
    pub bias: DType,
    /// Maximum workspace of an algorithm, in bytes; 0 for products that run concurrently.
    pub workspace: usize,
    /// True to add up each sum in one order, whatever the number of rows and of products.
    pub in_order: bool,
    /// The alignment in bytes of a matrix that the product is added to (C), which lies as D does.
    pub added: Option<u32>,
}

impl Product {
    /// True if operands are passed as lists of addresses.
    pub fn uses_pointer_arrays(&self) -> bool {
        self.outer > 1
    }

    /// True if the matrices of D are contiguous.
    pub fn is_dense(&self) -> bool {
        let apart = self.batch > 1 && self.d.batch_stride != (self.m * self.n) as i64;
        let outer = self.outer > 1 && self.d.outer_stride != (self.batch * self.m * self.n) as i64;
        self.d.ld == self.n as i64 && !apart && !outer
    }

    /// The addresses of all matrices of A, then of B, then of D. `first` holds the address of the
    /// first matrix of each.
    pub fn addresses(&self, first: [u64; 3]) -> Vec<u64> {
        let sides = [(self.a, self.dtype), (self.b, self.dtype), (self.d, self.out)];
        let mut out = Vec::with_capacity(3 * self.outer * self.batch);
        for ((side, dtype), first) in sides.into_iter().zip(first) {
            for (i, j) in (0..self.outer as i64).flat_map(|i| (0..self.batch as i64).map(move |j| (i, j))) {
                let elements = i * side.outer_stride + j * side.batch_stride;
                out.push(first.wrapping_add_signed(elements * dtype.size() as i64));
            }
        }
        out
    }
}

/// The library's number for an epilogue.
fn number(epilogue: Epilogue) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t::*;
    match epilogue {
        Epilogue::Default => CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Relu => CUBLASLT_EPILOGUE_RELU,
        Epilogue::Bias => CUBLASLT_EPILOGUE_BIAS,
        Epilogue::ReluBias => CUBLASLT_EPILOGUE_RELU_BIAS,
        Epilogue::ReluAux => CUBLASLT_EPILOGUE_RELU_AUX,
        Epilogue::ReluAuxBias => CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
        Epilogue::Drelu => CUBLASLT_EPILOGUE_DRELU,
        Epilogue::DreluBgrad => CUBLASLT_EPILOGUE_DRELU_BGRAD,
        Epilogue::Gelu => CUBLASLT_EPILOGUE_GELU,
        Epilogue::GeluBias => CUBLASLT_EPILOGUE_GELU_BIAS,
        Epilogue::GeluAux => CUBLASLT_EPILOGUE_GELU_AUX,
        Epilogue::GeluAuxBias => CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        Epilogue::Dgelu => CUBLASLT_EPILOGUE_DGELU,
        Epilogue::DgeluBgrad => CUBLASLT_EPILOGUE_DGELU_BGRAD,
        Epilogue::BgradA => CUBLASLT_EPILOGUE_BGRADA,
        Epilogue::BgradB => CUBLASLT_EPILOGUE_BGRADB,
    }
}

pub(super) fn failed(call: &str, e: result::CublasError) -> Error {
    Error::Device(format!("{call}: {:?}", e.0))
}

pub(super) fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    use sys::cudaDataType_t::*;
    Ok(match dtype {
        DType::F64 => CUDA_R_64F,
        DType::F32 => CUDA_R_32F,
        DType::F16 => CUDA_R_16F,
        DType::BF16 => CUDA_R_16BF,
        d => return Err(Error::Device(format!("a product of {d} has no CUDA kernel yet; use --device cpu"))),
    })
}

/// A `cublasLtMatrixLayout_t`.
struct Matrix(sys::cublasLtMatrixLayout_t);

impl Matrix {
    /// The layout of one operand. The library's columns are our rows.
    fn new(p: &Product, dtype: DType, [rows, columns]: [usize; 2], side: &Layout) -> Result<Matrix> {
        use sys::cublasLtBatchMode_t::CUBLASLT_BATCH_MODE_POINTER_ARRAY;
        use sys::cublasLtMatrixLayoutAttribute_t::*;
        let (rows, columns) = if side.transposed { (columns, rows) } else { (rows, columns) };
        let raw = result::create_matrix_layout(data_type(dtype)?, rows as u64, columns as u64, side.ld)
            .map_err(|e| failed("cublasLtMatrixLayoutCreate", e))?;
        let matrix = Matrix(raw);
        if p.uses_pointer_arrays() {
            matrix.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (p.outer * p.batch) as i32)?;
            matrix.set(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, CUBLASLT_BATCH_MODE_POINTER_ARRAY as u32)?;
        } else if p.batch > 1 {
            matrix.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, p.batch as i32)?;
            matrix.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, side.batch_stride)?;
        }
        Ok(matrix)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatrixLayoutAttribute_t, value: T) -> Result<()> {
        // SAFETY: the layout is alive, and the value has the type that cublasLt.h gives the
        // attribute.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>()) }
            .map_err(|e| failed("cublasLtMatrixLayoutSetAttribute", e))
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// A `cublasLtMatmulDesc_t`.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(p: &Product) -> Result<Description> {
        use sys::cublasComputeType_t::*;
        use sys::cublasLtMatmulDescAttributes_t::*;
        let (compute, scale) = match (p.dtype, p.tf32) {
            (DType::F64, _) => (CUBLAS_COMPUTE_64F, DType::F64),
            (DType::F32, true) => (CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (CUBLAS_COMPUTE_32F, DType::F32),
        };
        let raw = result::create_matmul_desc(compute, data_type(scale)?)
            .map_err(|e| failed("cublasLtMatmulDescCreate", e))?;
        let d = Description(raw);
        let op = |transposed: bool| i32::from(transposed); // CUBLAS_OP_N, CUBLAS_OP_T
        d.set(CUBLASLT_MATMUL_DESC_TRANSA, op(p.b.transposed))?;
        d.set(CUBLASLT_MATMUL_DESC_TRANSB, op(p.a.transposed))?;
        d.set(CUBLASLT_MATMUL_DESC_EPILOGUE, number(p.epilogue) as u32)?;
        // The heuristics check the alignment of addresses. Any aligned address serves until the
        // launch.
        if p.epilogue.has_bias() || p.epilogue.stores_sums() {
            d.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(p.bias)? as i32)?;
            d.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 256u64)?;
        }
        if p.epilogue.has_aux() {
            // The second matrix has the layout of D, and either D's type or one bit per element.
            // The library rejects rows of bits whose length is not a multiple of 128.
            d.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n as i64)?;
            d.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 256u64)?;
        }
        Ok(d)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        // SAFETY: the description is alive, and the value has the type that cublasLt.h gives the
        // attribute.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>()) }
            .map_err(|e| failed("cublasLtMatmulDescSetAttribute", e))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A `cublasLtMatmulPreference_t`.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(p: &Product, workspace: usize) -> Result<Preference> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let raw = result::create_matmul_pref().map_err(|e| failed("cublasLtMatmulPreferenceCreate", e))?;
        let preference = Preference(raw);
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace as u64)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b.alignment)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a.alignment)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.added.unwrap_or(p.d.alignment))?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.d.alignment)?;
        Ok(preference)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<()> {
        // SAFETY: the preference is alive, and the value has the type that cublasLt.h gives the
        // attribute.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>()) }
            .map_err(|e| failed("cublasLtMatmulPreferenceSetAttribute", e))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// An algorithm for a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Algorithm {
    raw: sys::cublasLtMatmulAlgo_t,
    /// Bytes of workspace that it requires.
    pub workspace: usize,
    /// True if it runs a long sum in slices, one launch after another.
    is_split: bool,
}

impl Algorithm {
    /// The algorithm's configuration as numbers that fit in a file: algorithm id, tile, split-K,
    /// reduction scheme, tile order, custom option, stages, and the instruction and cluster shapes
    /// packed with the flag for launches in split. The numbers are valid only for the same version
    /// of the library. (The library's structure also holds other bits, which vary from call to
    /// call.)
    pub fn to_words(self) -> [u64; 8] {
        use sys::cublasLtMatmulAlgoConfigAttributes_t::*;
        let [inner, cluster] =
            [CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID].map(|a| self.config(a, 2));
        let [id, tile, split, reduction, order, variant, stages] = [
            CUBLASLT_ALGO_CONFIG_ID,
            CUBLASLT_ALGO_CONFIG_TILE_ID,
            CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
            CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
            CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
            CUBLASLT_ALGO_CONFIG_STAGES_ID,
        ]
        .map(|a| self.config(a, 4));
        [id, tile, split, reduction, order, variant, stages, u64::from(self.is_split) << 32 | inner << 16 | cluster]
    }

    /// True if it runs the sum in slices, one launch after another.
    pub fn is_split(&self) -> bool {
        self.is_split
    }

    /// Number of accumulators that share the terms of a sum (split-K).
    fn split(&self) -> usize {
        self.config(sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4) as usize
    }

    /// A configuration attribute of `bytes` bytes; 0 if the library lacks the attribute.
    fn config(&self, attribute: sys::cublasLtMatmulAlgoConfigAttributes_t, bytes: usize) -> u64 {
        let (mut value, mut written) = (0u32, 0usize);
        // SAFETY: the algorithm came from the library, and the value has room for `bytes`, at most
        // four.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                &self.raw,
                attribute,
                (&raw mut value).cast(),
                bytes.min(size_of::<u32>()),
                &mut written,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS { value.into() } else { 0 }
    }
}

/// A product that any of its algorithms can launch.
pub struct Matmul {
    product: Product,
    /// Factor of the accumulator, applied before the epilogue (alpha).
    scale: f64,
    description: Description,
    /// The library's A: our B.
    a: Matrix,
    /// The library's B: our A.
    b: Matrix,
    d: Matrix,
    /// The same product over slices of the terms.
    split: Option<SplitSum>,
}

// SAFETY: descriptors are plain memory of the library; they are only changed by `launch`, which
// takes `&mut self`.
unsafe impl Send for Matmul {}

/// Device addresses: of the operands, or of the lists of matrix addresses.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// A.
    pub a: u64,
    /// B.
    pub b: u64,
    /// D.
    pub d: u64,
    /// The matrix that the product is added to, if there is one.
    pub c: u64,
    /// The bias that the epilogue reads, or the destination of its gradient.
    pub bias: u64,
    /// The second matrix, if the epilogue reads or stores one.
    pub aux: u64,
    /// The workspace, of the size that the product gives.
    pub workspace: u64,
}

impl Matmul {
    /// Describes a product.
    pub fn new(p: Product) -> Result<Matmul> {
        // Our B is the library's A: n x k with leading dimension `ld`; if transposed, k x n.
        Ok(Matmul {
            a: Matrix::new(&p, p.dtype, [p.n, p.k], &p.b)?,
            b: Matrix::new(&p, p.dtype, [p.k, p.m], &p.a)?,
            d: Matrix::new(&p, p.out, [p.n, p.m], &p.d)?,
            description: Description::new(&p)?,
            split: SplitSum::of(&p)?,
            product: p,
            scale: 1.0,
        })
    }

    /// The same product with the accumulator scaled before the epilogue. The factor must not be 0.
    pub fn scaled(self, scale: f64) -> Matmul {
        Matmul { scale, ..self }
    }

    /// The product, without its scale.
    pub fn product(&self) -> &Product {
        &self.product
    }

    /// The library's algorithms for this product, its best guess first; empty if there are none.
    /// The library lists only a few (13.1: eight), however many are requested. In f32, split-K
    /// algorithms crowd out better ones, which the library lists if it may use no workspace; these
    /// are appended. (H200, 1024x784x2048: 70 us instead of 72. In bf16 none of them won.) For a
    /// long f32 sum, algorithms that add all terms sequentially are replaced by the same algorithms
    /// over slices of the sum.
    pub fn algorithms(&self, lt: &Lt, at_most: usize) -> Result<Vec<Algorithm>> {
        let p = &self.product;
        if let Some(known) = lt.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&(*p, at_most)) {
            return Ok(known.clone());
        }
        if p.in_order {
            let pinned = self.pinned(lt)?;
            lt.answers.lock().unwrap_or_else(PoisonError::into_inner).insert((*p, at_most), pinned.clone());
            return Ok(pinned);
        }
        let mut all = self.within(lt, at_most, (p.workspace, None))?;
        if p.workspace > 0 && p.dtype == DType::F32 && !p.tf32 && !all.is_empty() {
            add_new(&mut all, self.within(lt, at_most, (0, None))?);
        }
        if let Some(split) = &self.split {
            // Algorithms for the whole product run its slices too, and the library does not list
            // all of them for a slice.
            let mut short: Vec<Algorithm> = Vec::new();
            for workspace in [p.workspace, 0] {
                add_new(&mut short, self.within(lt, at_most, (workspace, Some(split)))?);
            }
            add_new(&mut short, all.iter().map(|a| Algorithm { is_split: true, ..*a }).collect());
            short.retain(|a| split.accept(lt, a, [&self.description, &split.plain], &self.d));
            short.extend(all.iter().filter(|a| split_sum::short_enough(p, a)));
            if !short.is_empty() {
                all = short;
            }
        }
        lt.answers.lock().unwrap_or_else(PoisonError::into_inner).insert((*p, at_most), all.clone());
        Ok(all)
    }

    /// The first algorithm that the library names for usual numbers of rows and that does not
    /// divide sums: one for all numbers of rows. Empty if it does not run this product, which is
    /// an error in the end: another algorithm could add up in another order.
    fn pinned(&self, lt: &Lt) -> Result<Vec<Algorithm>> {
        let mut found = None;
        for rows in USUAL_ROWS {
            let usual = self.of_rows(rows)?;
            let mut named = usual.within(lt, PINNED_FROM, (self.product.workspace, usual.split.as_ref()))?;
            named.retain(|a| a.split() <= 1);
            // Whole products have algorithms that the library does not name for slices.
            if named.is_empty() && usual.split.is_some() {
                named = usual.within(lt, PINNED_FROM, (self.product.workspace, None))?;
                named.retain(|a| a.split() <= 1);
                named.iter_mut().for_each(|a| a.is_split = true);
            }
            found = named.first().copied();
            if found.is_some() {
                break;
            }
        }
        let runs = |a: &Algorithm| match &self.split {
            Some(split) => split.accept(lt, a, [&self.description, &split.plain], &self.d),
            None => self.accepts(lt, a),
        };
        // Other numbers of rows may need more workspace.
        let found = found.map(|a| Algorithm { workspace: self.product.workspace, ..a });
        Ok(found.filter(runs).into_iter().collect())
    }

    /// The same product of so many rows, alone.
    fn of_rows(&self, m: usize) -> Result<Matmul> {
        let p = &self.product;
        let of = |l: Layout, by_rows: bool| {
            let ld = if by_rows { l.ld.max(m as i64) } else { l.ld };
            Layout { ld, batch_stride: 0, outer_stride: 0, ..l }
        };
        let [a, b, d] = [of(p.a, p.a.transposed), of(p.b, false), of(p.d, false)];
        Matmul::new(Product { m, batch: 1, outer: 1, a, b, d, ..*p })
    }

    /// True if the library runs the product by that algorithm.
    fn accepts(&self, lt: &Lt, algorithm: &Algorithm) -> bool {
        // SAFETY: all-zero bytes are a valid result: a plain structure of numbers.
        let mut answer: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let (what, a, b, d) = (self.description.0, self.a.0, self.b.0, self.d.0);
        // SAFETY: all handles are alive, and so is the algorithm that the library gave.
        let status =
            unsafe { sys::cublasLtMatmulAlgoCheck(lt.handle, what, a, b, d, d, &algorithm.raw, &raw mut answer) };
        status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && answer.workspaceSize <= algorithm.workspace
    }

    /// The library's algorithms, for the whole or for its slices, within a workspace limit in
    /// bytes.
    fn within(
        &self,
        lt: &Lt,
        at_most: usize,
        (workspace, split): (usize, Option<&SplitSum>),
    ) -> Result<Vec<Algorithm>> {
        let preference = Preference::new(&self.product, workspace)?;
        let (a, b) = split.map_or((&self.a, &self.b), |split| (&split.a[1], &split.b[1]));
        // SAFETY: all-zero bytes are a valid result: a plain structure of numbers.
        let empty: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut found = vec![empty; at_most.max(1)];
        let mut count = 0;
        // SAFETY: all handles are alive; the array has the stated length.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                lt.handle,
                self.description.0,
                a.0,
                b.0,
                self.d.0,
                self.d.0,
                preference.0,
                found.len() as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        // The library rejects a second matrix, sums or address lists with either status.
        let epilogue = self.product.epilogue;
        let refused = status == sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE
            && (epilogue.has_aux() || epilogue.stores_sums() || self.product.uses_pointer_arrays());
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED || refused {
            return Ok(Vec::new());
        }
        status.result().map_err(|e| failed("cublasLtMatmulAlgoGetHeuristic", e))?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        let usable = found.iter().filter(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let algorithm = |f: &sys::cublasLtMatmulHeuristicResult_t| Algorithm {
            raw: f.algo,
            workspace: f.workspaceSize,
            is_split: split.is_some(),
        };
        Ok(usable.map(algorithm).collect())
    }

    /// Launches the product on a stream.
    ///
    /// # Safety
    /// The addresses must be those of operands as the product describes them, valid until the
    /// stream is done.
    pub unsafe fn launch(&mut self, lt: &Lt, stream: &CudaStream, algorithm: &Algorithm, at: &Pointers) -> Result<()> {
        bind(stream)?;
        let epilogue = self.product.epilogue;
        if epilogue.has_bias() || epilogue.stores_sums() {
            use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            self.description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias)?;
        }
        if epilogue.has_aux() {
            use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            self.description.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.aux)?;
        }
        let whole = Call { description: &self.description, a: &self.a, b: &self.b, adds: false };
        let Some(split) = self.split.as_ref().filter(|_| algorithm.is_split) else {
            // SAFETY: the caller guarantees the addresses.
            return unsafe { self.call(lt, stream, algorithm, at, whole) };
        };
        (0..split.count).try_for_each(|slice| {
            let last = usize::from(slice + 1 == split.count);
            let description = if last == 1 { &self.description } else { &split.plain };
            let call = Call { description, a: &split.a[last], b: &split.b[last], adds: slice > 0 };
            let [a, b] = split.offsets(&self.product, slice);
            let at = Pointers { a: at.a + a, b: at.b + b, ..*at };
            // SAFETY: the slices lie within the operands, for which the caller answers.
            unsafe { self.call(lt, stream, algorithm, &at, call) }
        })
    }

    /// One library call.
    ///
    /// # Safety
    /// As [`Matmul::launch`]; a result that is added to must already be written.
    unsafe fn call(
        &self,
        lt: &Lt,
        stream: &CudaStream,
        algorithm: &Algorithm,
        at: &Pointers,
        call: Call<'_>,
    ) -> Result<()> {
        // The scales have the compute type.
        let added = self.product.added.is_some();
        let beta = if call.adds || added { 1.0 } else { 0.0 };
        let from = if added && !call.adds { at.c } else { at.d };
        let (scale32, beta32, scale64, beta64) = (self.scale as f32, beta as f32, self.scale, beta);
        let (scale, beta): (*const c_void, *const c_void) = match self.product.dtype {
            DType::F64 => ((&raw const scale64).cast(), (&raw const beta64).cast()),
            _ => ((&raw const scale32).cast(), (&raw const beta32).cast()),
        };
        // SAFETY: handles and scales are alive; the caller guarantees the addresses.
        unsafe {
            result::matmul(
                lt.handle,
                call.description.0,
                scale,
                beta,
                at.b as *const c_void,
                call.a.0,
                at.a as *const c_void,
                call.b.0,
                from as *const c_void,
                self.d.0,
                at.d as *mut c_void,
                self.d.0,
                &algorithm.raw,
                at.workspace as *mut c_void,
                self.product.workspace,
                stream.cu_stream().cast(),
            )
        }
        .map_err(|e| failed(&format!("cublasLtMatmul of {:?}", self.product), e))
    }
}

/// One library call: all terms of a product, or a part of them.
struct Call<'a> {
    description: &'a Description,
    a: &'a Matrix,
    b: &'a Matrix,
    /// True if the result is added to what D holds (beta is 1), which another call wrote.
    adds: bool,
}

/// Appends the algorithms that are not in the list yet.
fn add_new(all: &mut Vec<Algorithm>, more: Vec<Algorithm>) {
    let mut known: Vec<[u64; 8]> = all.iter().map(|a| a.to_words()).collect();
    for other in more {
        if !known.contains(&other.to_words()) {
            known.push(other.to_words());
            all.push(other);
        }
    }
}

impl Lt {
    /// Opens cuBLASLt in the current context. The library must already be loaded.
    pub(super) fn new() -> Result<Lt> {
        let handle = result::create_handle().map_err(|e| failed("cublasLtCreate", e))?;
        Ok(Lt { handle, answers: Mutex::default() })
    }

    pub(super) fn handle(&self) -> sys::cublasLtHandle_t {
        self.handle
    }

    /// The library's version number: 130100 is 13.1.0.
    pub fn version(&self) -> usize {
        // SAFETY: the call takes nothing.
        unsafe { sys::cublasLtGetVersion() }
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
