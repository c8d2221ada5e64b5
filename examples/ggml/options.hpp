// The environment variable CRUMB_GGML.
#pragma once

#include <crumb/core/status.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace crumb_ggml {

/// What CRUMB_GGML says: words with commas between them.
struct options {
    bool off = false;     ///< `off`: the plug-in registers no device
    bool verbose = false; ///< `verbose`: a line per tensor
    /// `products`: matrix products only; what lies between them stays with ggml's CPU backend.
    bool products_only = false;
    /// `own-buffers`: everything that the backend computes lies in its own buffers, weights that are not
    /// allocated count as its own. For ggml's test-backend-ops.
    bool own_buffers = false;
    /// `whole`: the device counts as a GPU that computes whole graphs; what it lacks, ggml's CPU backend
    /// computes for it. For servers of ggml's RPC, which know no other kind. With it, `own_buffers` is set.
    bool whole = false;
    /// `steady`: threads always compute together, however busy the machine is. For measurements.
    bool steady = false;
    /// `types=q4_0+q4_k`: only weights of these types; empty: all.
    std::vector<std::string> types;
    /// `weights=FILE`: packed weights of a file that `crumb-lm quantize` wrote take the place of tensors of
    /// the same name.
    std::string weights;

    /// Whether weights of a type, by ggml's name, are taken.
    bool takes(std::string_view type) const;

    /// From the text of the variable; an error names the first word that is unknown.
    static crumb::result<options> parse(std::string_view text);
};

/// Those of this process, read once. With a word that is unknown or a file that cannot be used, which is
/// logged, the plug-in is off.
const options& the_options();

} // namespace crumb_ggml
