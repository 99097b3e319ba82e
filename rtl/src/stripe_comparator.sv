// SPDX-License-Identifier: Apache-2.0
//
// Compares one stripe of a slot with one stripe of the key.

module stripe_comparator #(
  parameter int unsigned StripeWords = 1
) (
  input  logic [StripeWords-1:0][63:0] stripe_i,
  input  logic [StripeWords-1:0][63:0] key_i,
  input  logic [StripeWords-1:0]       mask_i,    // words that the key covers
  input  logic [15:0]                  tag_i,     // the key's length and check
  output logic                         is_equal_o,
  output logic                         is_tagged_o, // if this is the stripe of the locator
  output logic                         is_free_o    // if this is the stripe of the locator
);

  logic [StripeWords-1:0] is_same;

  for (genvar i = 0; i < StripeWords; i++) begin : gen_word
    assign is_same[i] = !mask_i[i] || stripe_i[i] == key_i[i];
  end

  assign is_equal_o  = &is_same;
  assign is_tagged_o = stripe_i[0][63:48] == tag_i;
  assign is_free_o   = stripe_i[0] == '0;

endmodule
