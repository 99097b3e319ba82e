// SPDX-License-Identifier: Apache-2.0
//
// Decides whether a slot has expired: 0 means never, and a slot is expired from its second on.

module expiry (
  input  logic [31:0] expiry_i,
  input  logic [31:0] now_i,
  output logic        is_expired_o
);

  assign is_expired_o = expiry_i != '0 && expiry_i <= now_i;

endmodule
