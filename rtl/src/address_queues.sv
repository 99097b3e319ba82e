// SPDX-License-Identifier: Apache-2.0
//
// Holds the free addresses of the value store by block size. Addresses never used are allocated
// first, in order, then freed ones, oldest first, so a freed block is reused as late as possible.
//
// Class c has 2^BlockBits blocks of 2^(ClassShift*c) beats. It stands outside the table. Freed
// blocks are kept by their number, in block RAM unless there are few of them.

module address_queues #(
  parameter int unsigned Classes = 3,
  parameter int unsigned ClassShift = 3,
  parameter int unsigned BlockBits = 8,
  localparam int unsigned ClassWidth = Classes > 1 ? $clog2(Classes) : 1
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  free_valid_i,
  input  logic [ClassWidth-1:0] free_class_i,
  input  logic [47:0]           free_pointer_i,
  input  logic [ClassWidth-1:0] alloc_class_i,
  input  logic                  alloc_take_i,
  output logic                  alloc_valid_o,
  output logic [47:0]           alloc_pointer_o,
  output logic [Classes-1:0][BlockBits:0] left_o   // free addresses of each class
);

  localparam int unsigned Blocks = 2 ** BlockBits;

  logic [Classes-1:0]       has_address;
  logic [Classes-1:0][47:0] address;

  for (genvar c = 0; c < Classes; c++) begin : gen_class
    // Beats before the class: one block of the largest size, so that no address is 0, and the
    // classes below.
    localparam int unsigned Shift = ClassShift * c;
    localparam int unsigned Below = ((2 ** (ClassShift * c)) - 1) / ((2 ** ClassShift) - 1);
    localparam logic [47:0] Base = 48'(2 ** (ClassShift * (Classes - 1))) + 48'(Below) * Blocks;

    logic [BlockBits:0] fresh_q;   // blocks that have ever been allocated
    logic is_fresh, is_taken, is_freed, is_reused, has_returned;
    logic [BlockBits-1:0] freed, returned, block;   // numbers of blocks

    assign is_fresh = fresh_q != (BlockBits + 1)'(Blocks);
    assign is_taken = alloc_take_i && alloc_class_i == ClassWidth'(c);
    assign is_freed = free_valid_i && free_class_i == ClassWidth'(c);

    assign is_reused = is_taken && !is_fresh;
    assign freed     = BlockBits'((Shift + BlockBits)'(free_pointer_i - Base) >> Shift);

    // As deep as the number of blocks, so it has room for every freed address.
    logic [BlockBits:0] level;
    if (BlockBits > 6) begin : gen_deep
      deep_fifo #(.Width(BlockBits), .DepthBits(BlockBits)) u_returned (
        .clk_i, .rst_ni, .valid_i(is_freed), .data_i(freed), .valid_o(has_returned),
        .ready_i(is_reused), .data_o(returned), .level_o(level)
      );
    end else begin : gen_flat
      fifo #(.Width(BlockBits), .Depth(Blocks)) u_returned (
        .clk_i, .rst_ni, .valid_i(is_freed), .ready_o(), .data_i(freed),
        .valid_o(has_returned), .ready_i(is_reused), .data_o(returned), .level_o(level)
      );
    end

    assign has_address[c] = is_fresh || has_returned;
    assign block          = is_fresh ? fresh_q[BlockBits-1:0] : returned;
    assign address[c]     = Base + (48'(block) << Shift);
    assign left_o[c]      = (BlockBits + 1)'(Blocks) - fresh_q + level;

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) fresh_q <= '0;
      else if (is_taken && is_fresh) fresh_q <= fresh_q + 1'b1;
    end
  end

  assign alloc_valid_o   = has_address[alloc_class_i];
  assign alloc_pointer_o = address[alloc_class_i];

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // For each class, assuming that only allocated addresses are freed: free and allocated addresses
  // together are all addresses, so the queue has room for every freed one; and an address chosen by
  // the solver, once it was allocated, is either allocated or in the queue once, never both.
  for (genvar c = 0; c < Classes; c++) begin : gen_formal
    logic [BlockBits-1:0] f_index, f_index_q;
    logic [47:0]          f_watched;
    logic [BlockBits:0]   f_lent_q, f_count;
    logic                 f_is_lent_q, f_takes, f_frees;

    always_ff @(posedge clk_i) f_index_q <= f_index;
    assign f_watched = gen_class[c].Base + (48'(f_index) << gen_class[c].Shift);
    assign f_takes   = gen_class[c].is_taken && address[c] == f_watched;
    assign f_frees   = gen_class[c].is_freed && free_pointer_i == f_watched;

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        f_lent_q    <= '0;
        f_is_lent_q <= 1'b0;
      end else begin
        f_lent_q    <= f_lent_q + (BlockBits + 1)'(gen_class[c].is_taken)
                       - (BlockBits + 1)'(gen_class[c].is_freed);
        f_is_lent_q <= f_takes || (f_is_lent_q && !f_frees);
      end
    end

    always_comb begin
      f_count = '0;
      for (int unsigned i = 0; i < Blocks; i++) begin
        f_count = f_count + (BlockBits + 1)'(
            (BlockBits + 1)'(i) < gen_class[c].level
            && gen_class[c].gen_flat.u_returned.store[
                BlockBits'(gen_class[c].gen_flat.u_returned.read_q + BlockBits'(i))] == f_index);
      end
      if (f_started_q) assume (f_index == f_index_q);
      if (rst_ni) begin
        assume (!gen_class[c].is_freed || f_lent_q != '0);
        assume (!gen_class[c].is_freed
                || free_pointer_i == gen_class[c].Base
                                     + (48'(gen_class[c].freed) << gen_class[c].Shift));
        assume (!f_frees || f_is_lent_q);
        assume (!(alloc_take_i && !alloc_valid_o));
        assert (gen_class[c].fresh_q <= (BlockBits + 1)'(Blocks));
        assert (f_lent_q <= gen_class[c].fresh_q);
        assert (f_lent_q + gen_class[c].level == gen_class[c].fresh_q);
        assert (f_lent_q + left_o[c] == (BlockBits + 1)'(Blocks));
        assert (!gen_class[c].is_freed || gen_class[c].level != (BlockBits + 1)'(Blocks));
        assert (f_count + (BlockBits + 1)'(f_is_lent_q)
                == (BlockBits + 1)'((BlockBits + 1)'(f_index) < gen_class[c].fresh_q));
        assert (!(f_takes && f_is_lent_q));
      end
    end
  end
`endif

endmodule
