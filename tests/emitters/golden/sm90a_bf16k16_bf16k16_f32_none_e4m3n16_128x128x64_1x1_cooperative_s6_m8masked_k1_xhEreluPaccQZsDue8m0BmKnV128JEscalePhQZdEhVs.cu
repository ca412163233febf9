#include <gemmill/kernel/tma_wgmma.cuh>

// e4m3 D = bf16 A x bf16 B, accumulated in f32
struct Atom {
  using Register = float;
  static constexpr int kRegisters = 64;
  static constexpr int kK = 16;

  __device__ static void multiply(uint64_t a, uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(int(accumulate)));
  }
};

// h = relu(acc); s.ue8m0[m, n/128] = scale(h); d = h / s
struct Epilogue : gemmill::NoMatrices {
  using Compute = float;
  static constexpr bool kIsExpression = true;
  static constexpr bool kIsPartial = false;
  static constexpr bool kGated = false, kGatesHalves = false;
  static constexpr int kGateColumns = 0, kGateRows = 0, kScaledColumns = 128;
  static constexpr int kTotals = 0, kRowTotals = 0, kColumnTotals = 0;
  static constexpr int kReductions = kTotals + kRowTotals + kColumnTotals;
  static constexpr bool kAddresses = false;
  __device__ static constexpr gemmill::Reduce reduce(int i) { return gemmill::Reduce::Sum; }

  struct Params {
    Compute alpha, beta;
    gemmill::Matrix<gemmill::ue8m0> s_;
  };
  struct Uniform {};
  struct Row {};
  struct Column {};
  struct Element {};
  struct Extras {};

  Params const& params;

  __device__ explicit Epilogue(Params const& params_) : params(params_) {}
  __device__ bool needs_c() const { return false; }
  __device__ Uniform uniform(int batch) const { return {}; }
  __device__ Row row(int m, int batch) const { return {}; }
  __device__ Column column(int n, int batch) const { return {}; }
  __device__ void columns(int n0, int n1, int end, int batch, Column& first, Column& second) const {}
  __device__ Element element(int m, int n, int batch) const { return {}; }
  __device__ void elements(int m, int n0, int n1, int end, int batch, Element& first, Element& second) const {}
  __device__ void touch(int m, int rows, int m_end, int n, int columns, int n_end, int batch, int thread) const {}
  __device__ void store(Extras const& extras, int m, int n, int batch) const {}
  __device__ void store_two(Extras const& first, Extras const& second, int m, int n0, int n1, int end,
                            int batch) const {}

  __device__ Compute compute(Compute acc, Compute, Compute c, Uniform const& uniform, Row const& row, Column const& column,
                             Element const& element, Extras& extras) const {
    using namespace gemmill;
    Compute const h_ = math::relu(acc);
    return h_;
  }
  using Scale = gemmill::ue8m0;
  __device__ void store_scale(Scale scale, int m, int n, int batch) const {
    *params.s_.at(m, n / kScaledColumns, batch) = scale;
  }
  __device__ Compute quantised(Compute h_, Compute s_, Uniform const& uniform) const {
    using namespace gemmill;
    return math::mul(h_, math::reciprocal(s_));
  }
  __device__ Compute operator()(Compute accumulator, Compute c, int m, int n, int batch) const {
    return gemmill::evaluate(*this, accumulator, c, m, n, batch);
  }
};
static_assert(sizeof(Epilogue::Params) == 40, "the host lays out the same members, without padding");
struct Config {
  using A = gemmill::bf16;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = gemmill::e4m3;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;

  static constexpr int kTileM = 128, kTileN = 128, kTileK = 64;
  static constexpr int kClusterM = 1, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr bool kPromote = false;
  static constexpr int kGroup = 0;
  static constexpr bool kZeros = false;
  static constexpr int kStages = 6, kSubtileN = 128, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;
  template <class Order, int TileK>
  using Scheduler = gemmill::GroupScheduler<gemmill::BatchMode::GroupedM, Order, TileK, true>;

  using Atom = ::Atom;
  using Terms = gemmill::OneTerm;
  using Epilogue = ::Epilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_bf16k16_bf16k16_f32_none_e4m3n16_128x128x64_1x1_cooperative_s6_m8masked_k1_xhEreluPaccQZsDue8m0BmKnV128JEscalePhQZdEhVs_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_bf16k16_bf16k16_f32_none_e4m3n16_128x128x64_1x1_cooperative_s6_m8masked_k1_xhEreluPaccQZsDue8m0BmKnV128JEscalePhQZdEhVs(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
