#include "artifact.h"

#include <zstd.h>

#include <cstring>

#include "digest.h"
#include "error.h"
#include "strict_json.h"

namespace gemmill {
namespace {

constexpr std::string_view kMagic("gemmill\x01", 8);
constexpr int64_t kSchema = 3;
constexpr uint64_t kMaxHeaderBytes = 1 << 20;
constexpr int64_t kMaxCubinBytes = 32 << 20;
constexpr std::string_view kEntryPrefix = "gemmill_";
constexpr size_t kSourceDigits = 12;

/// Magic, bytes of the header, bytes of the compressed cubin, SHA-256 of both.
struct Prefix {
  char magic[8];
  uint64_t header_bytes;
  uint64_t body_bytes;
  unsigned char digest[32];
};
static_assert(sizeof(Prefix) == 56);

const Dtype* read_dtype(const Row& row, const char* name) {
  const Dtype* dtype = dtype_named(row.text(name));
  if (dtype == nullptr) throw Invalid(row.place(name) + " is " + row.text(name) + ", which is not a dtype");
  return dtype;
}

OperandConfig read_input(const Row& config, const char* name) {
  const Row row = config.row(name, {"dtype", "major", "align", "scale"});
  return {read_dtype(row, "dtype"), row.word("major", {"k", "mn", "any"}), row.whole("align", 1, 16),
          row.text("scale")};
}

OperandConfig read_output(const Row& config, const char* name) {
  const Row row = config.row(name, {"dtype", "major", "align"});
  return {read_dtype(row, "dtype"), row.word("major", {"n", "m", "any"}), row.whole("align", 1, 16)};
}

Config read_config(const Row& row) {
  const Row scheduler =
      row.row("scheduler", {"raster", "swizzle_size", "splits", "decomposition", "symmetry", "rows", "batching"});
  return {row.text("arch"),
          read_input(row, "a"),
          read_input(row, "b"),
          row.is_null("c") ? std::nullopt : std::optional<OperandConfig>(read_output(row, "c")),
          read_output(row, "d"),
          read_dtype(row, "accumulator"),
          row.whole("promote", 0, 4),
          row.word("schedule", {"cooperative", "pingpong", "multistage", "simt", "gemv"}),
          scheduler.text("decomposition"),
          scheduler.text("batching"),
          scheduler.text("rows"),
          scheduler.text("symmetry"),
          row.text("epilogue")};
}

/// The cubin, whose size is stated in two places, which are compared before memory is allocated.
std::string decompressed(std::string_view body, int64_t size) {
  const unsigned long long frame = ZSTD_getFrameContentSize(body.data(), body.size());
  if (frame != static_cast<unsigned long long>(size) || size > kMaxCubinBytes) {
    throw Invalid("its cubin has " + std::to_string(size) +
                  " bytes by the header and another number by its frame, or "
                  "more than " +
                  std::to_string(kMaxCubinBytes));
  }
  std::string cubin(static_cast<size_t>(size), '\0');
  // One frame and nothing behind it: the call fails where there are more bytes than the frame holds.
  const size_t frame_bytes = ZSTD_findFrameCompressedSize(body.data(), body.size());
  if (ZSTD_isError(frame_bytes) || frame_bytes != body.size()) throw Invalid("its cubin is not one zstd frame");
  const size_t got = ZSTD_decompress(cubin.data(), cubin.size(), body.data(), body.size());
  if (ZSTD_isError(got) || got != cubin.size()) throw Invalid("its cubin cannot be decompressed");
  return cubin;
}

void check_cubin(const std::string& cubin, const std::string& entry) {
  const std::string symbol = '\0' + entry + '\0';
  if (cubin.rfind("\x7f"
                  "ELF",
                  0) != 0 ||
      cubin.find(symbol) == std::string::npos) {
    throw Invalid("its cubin has no kernel '" + entry.substr(0, 200) + "'");
  }
}

/// The name of a kernel from its symbol, which contains it, and the source of an edited one.
std::string name_of(const std::string& entry, bool is_edited, const std::string& source_digest) {
  if (entry.rfind(kEntryPrefix, 0) != 0) throw Invalid("launch.entry is " + entry.substr(0, 200));
  const std::string name = entry.substr(kEntryPrefix.size());
  return is_edited ? name + "+src." + source_digest.substr(0, kSourceDigits) : name;
}

Artifact read_header(std::string_view header, std::string_view body) {
  const Document document(header);
  const Row row = document.row({"config", "launch", "resources", "provenance", "cubin_bytes", "signature"}, true);
  const bool is_edited = row.has("edited");
  if (row.size() != 6 + size_t{is_edited}) throw Invalid("its header has unknown keys");
  const Row provenance = row.row("provenance", {"schema_version", "source_digest", "gemmill_version"}, true);
  if (provenance.whole("schema_version") != kSchema) {
    throw Invalid("its schema is " + std::to_string(provenance.whole("schema_version")) + " (made by gemmill " +
                  provenance.text("gemmill_version") + "); it must be " + std::to_string(kSchema));
  }
  if (!row.is_null("signature")) {
    throw Invalid("it has an embedded signature, which this version of gemmill cannot check");
  }
  if (is_edited && !row.flag("edited")) throw Invalid("edited is false; it must be true or absent");
  const Row config = row.row("config", {"arch", "a", "b", "accumulator", "promote", "c", "d", "tile", "cluster",
                                        "schedule", "stages", "scheduler", "epilogue"});
  const Row launch = row.row("launch", {"entry", "threads", "cluster", "cluster_k", "shared_bytes", "tile",
                                        "k_decomposition", "boxes", "params_bytes", "offsets"});
  Artifact artifact{"", read_config(config), LaunchSpec::read(launch), decompressed(body, row.whole("cubin_bytes")),
                    ""};
  artifact.name = name_of(artifact.launch.entry, is_edited, provenance.text("source_digest"));
  check_cubin(artifact.cubin, artifact.launch.entry);
  return artifact;
}

}  // namespace

Artifact Artifact::read(std::string_view data) {
  Prefix prefix;
  if (data.size() < sizeof prefix || data.substr(0, kMagic.size()) != kMagic) {
    throw Invalid("not an artifact of this version of gemmill");
  }
  std::memcpy(&prefix, data.data(), sizeof prefix);
  const std::string_view content = data.substr(sizeof prefix);
  if (prefix.header_bytes > content.size() || prefix.body_bytes != content.size() - prefix.header_bytes) {
    throw Invalid("it has " + std::to_string(content.size()) + " bytes; expected another number");
  }
  if (prefix.header_bytes > kMaxHeaderBytes) {
    throw Invalid("its header has " + std::to_string(prefix.header_bytes) + " bytes; the limit is " +
                  std::to_string(kMaxHeaderBytes));
  }
  if (std::memcmp(sha256(content).data(), prefix.digest, sizeof prefix.digest) != 0) {
    throw Invalid("checksum mismatch");
  }
  try {
    return read_header(content.substr(0, prefix.header_bytes), content.substr(prefix.header_bytes));
  } catch (const Invalid& error) {
    throw Invalid(std::string("not readable by this version of gemmill: ") + error.what());
  }
}

}  // namespace gemmill
