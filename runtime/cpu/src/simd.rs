//! Detects this machine's vector instructions, and compiles loops once for each set of them.
//!
//! Invariant: [`dispatch!`] functions give the same bits on every set, since Rust never contracts a
//! multiplication and an addition into one rounding; only the matrix kernels, which request FMA,
//! differ.

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors with masks.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// The baseline of the target.
    Portable,
}

#[cfg(test)]
thread_local! {
    static LIMIT: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

/// Tests only: limits this thread to that set from now on.
#[cfg(test)]
pub fn limit(isa: Isa) {
    LIMIT.set(isa as u8);
}

/// The best set of this machine.
pub fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        #[cfg(test)]
        let limit = LIMIT.get();
        #[cfg(not(test))]
        let limit = 0;
        macro_rules! has {
            ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
        }
        let avx2 = has!("avx2", "fma", "f16c");
        if limit == 0 && avx2 && has!("avx512f", "avx512bw", "avx512dq", "avx512vl") {
            return Isa::Avx512;
        }
        if limit <= 1 && avx2 {
            return Isa::Avx2;
        }
    }
    Isa::Portable
}

/// Defines a function whose body is compiled for each set; the best one runs. Callees must be
/// `#[inline(always)]` to be compiled with it.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::simd::{Isa, isa};
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match isa() {
                    // SAFETY: `isa` has asked the processor for exactly these features.
                    Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    Isa::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use dispatch;

/// Transposes 8 by 8 elements: row i of `from` begins at `i * from_row`. Returns whether this was
/// done.
#[cfg(target_arch = "x86_64")]
pub fn transpose8(from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) -> bool {
    if isa() == Isa::Portable || from.len() < 7 * from_row + 8 || to.len() < 7 * to_row + 8 {
        return false;
    }
    // SAFETY: both slices hold eight rows of eight elements at these distances, and the processor
    // has at least AVX2.
    unsafe { transpose8_avx(from.as_ptr(), from_row, to.as_mut_ptr(), to_row) };
    true
}

/// # Safety
/// Eight rows of eight elements can be read and written at these distances; the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose8_avx(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise for all loads and stores.
    unsafe {
        let row = |i: usize| _mm256_loadu_ps(from.add(i * from_row));
        let r: [__m256; 8] = std::array::from_fn(row);
        let low = |i: usize| _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        let high = |i: usize| _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        let (l, h): ([__m256; 4], [__m256; 4]) = (std::array::from_fn(low), std::array::from_fn(high));
        // Interleaves pairs of elements of four rows, in both halves.
        let q = [
            _mm256_shuffle_ps::<0x44>(l[0], l[1]),
            _mm256_shuffle_ps::<0xee>(l[0], l[1]),
            _mm256_shuffle_ps::<0x44>(h[0], h[1]),
            _mm256_shuffle_ps::<0xee>(h[0], h[1]),
            _mm256_shuffle_ps::<0x44>(l[2], l[3]),
            _mm256_shuffle_ps::<0xee>(l[2], l[3]),
            _mm256_shuffle_ps::<0x44>(h[2], h[3]),
            _mm256_shuffle_ps::<0xee>(h[2], h[3]),
        ];
        for i in 0..4 {
            _mm256_storeu_ps(to.add(i * to_row), _mm256_permute2f128_ps::<0x20>(q[i], q[i + 4]));
            _mm256_storeu_ps(to.add((i + 4) * to_row), _mm256_permute2f128_ps::<0x31>(q[i], q[i + 4]));
        }
    }
}
