// Files whose matrices lie as the kernels read them, to be used as they are mapped.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"
#include "model/packed_file.hpp"

#include <memory>
#include <string>

namespace lm {

/// The file of a model with packed matrices, not yet written.
struct packed_model {
    std::shared_ptr<const void> source; ///< what `file` refers to
    gguf_writer file;
    std::size_t matrices = 0; ///< that are packed
    std::size_t bytes = 0;    ///< of these
};

/// Packs the matrices of attention, feed-forward networks and the vocabulary in the file at `path`: what
/// `model::load` would do in memory of its own. Types that are decoded only become q8_0; floats, halves and
/// what is packed already stay. Memory is that of one matrix while the file is written. Refuses files that
/// are packed themselves, and architectures that are not known; weights that are not finite are an error of
/// `file.write`.
crumb::result<packed_model> pack_model(const std::string& path);
/// The same of a file that has been read and described.
crumb::result<packed_model> pack_model(gguf file, const pack_source& source);

/// Where `--cache` keeps the packed file of a model: beside it.
inline std::string cache_path(const std::string& model) { return model + ".packed"; }

} // namespace lm
